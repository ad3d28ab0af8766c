"""A federation small enough to reckon by hand: twelve parameters, fedavg or fedsparq, updates given by the test."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress.method import method
from fedsparq.compress.payload import Everything, Floats, Payload
from fedsparq.compress.pipeline import Method
from fedsparq.federate.client import Client, Trained
from fedsparq.federate.downlink import Downlink
from fedsparq.federate.messages import Reply, method_digest
from fedsparq.federate.model import Model
from fedsparq.federate.rules import Rules
from fedsparq.federate.server import Server
from fedsparq.federate.store import MemoryStore, Store
from fedsparq.layout import Exact, Layout
from fedsparq.wire.frame import encode

LAYOUT = Layout.of({"weight": (3, 3), "bias": (3,)})
FEDAVG, FEDSPARQ = method("fedavg"), method("fedsparq")
Vector = NDArray[np.float32]


def vector(value: float, layout: Layout = LAYOUT) -> Vector:
    return np.full(layout.size, value, np.float32)


def updates(seed: int) -> Callable[[int], Vector]:
    """A round's update."""
    return lambda number: np.random.default_rng([seed, number]).normal(size=LAYOUT.size).astype(np.float32)


def server(chosen: Method = FEDAVG, rules: Rules | None = None, down: Method | None = None) -> Server:
    return Server.start(LAYOUT, chosen, Model(vector(0)), rules=rules, downlink=Downlink(LAYOUT, down))


def client(number: int, store: Store | None = None, seed: int | None = None) -> Client:
    update = updates(number if seed is None else seed)
    return Client(number, LAYOUT, lambda model, chosen, at: Trained(update(at), 10), store or MemoryStore())


def reply(
    update: Vector,
    number: int = 1,
    *,
    chosen: Method = FEDAVG,
    examples: int = 10,
    layout: Layout = LAYOUT,
    exact: Exact | None = None,
) -> bytes:
    """A well-formed reply that carries an update as it is."""
    values = tuple(Floats(update[tensor.span]) for tensor in layout.parameters)
    blob = encode(Payload(layout, Everything(layout.size), values, exact))
    return Reply(number, method_digest(chosen), examples, blob).encode()
