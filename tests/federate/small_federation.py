"""A federation small enough to reckon by hand: twelve parameters, fedavg or fedsparq, updates given by the test."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedsparq.federate.client import Client, Trained
from fedsparq.federate.downlink import Downlink, Lattice
from fedsparq.federate.messages import Acknowledgement, Broadcast, Reply, reply_digest
from fedsparq.federate.model import Model
from fedsparq.federate.server import Server
from fedsparq.federate.state import ClientState
from fedsparq.federate.store import MemoryStore, Store
from fedsparq.federate.validation import Validation
from fedsparq.layout import Buffers, Layout
from fedsparq.method import Identity, Method
from fedsparq.methods import method, resolver
from fedsparq.payload import Payload
from fedsparq.wire import decode, encode

LAYOUT = Layout.of({"weight": (3, 3), "bias": (3,)})
FEDAVG, FEDSPARQ = method("fedavg"), method("fedsparq")
Vector = NDArray[np.float32]


def vector(value: float, layout: Layout = LAYOUT) -> Vector:
    return np.full(layout.size, value, np.float32)


def updates(seed: int) -> Callable[[int], Vector]:
    """A round's update."""
    return lambda number: np.random.default_rng([seed, number]).normal(size=LAYOUT.size).astype(np.float32)


def identity(chosen: Method) -> Identity:
    assert chosen.identity is not None
    return chosen.identity


def server(chosen: Method = FEDAVG, validation: Validation | None = None, down: Lattice | None = None) -> Server:
    return Server(LAYOUT, chosen, Model(vector(0)), validation=validation, downlink=Downlink(LAYOUT, down))


def client(number: int, store: Store | None = None, seed: int | None = None) -> Client:
    update = updates(number if seed is None else seed)
    train = lambda model, hook, at: Trained(update(at), 10, reach=1.0)  # noqa: E731
    return Client(number, LAYOUT, train, store or MemoryStore(), resolver())


def reply(
    update: Vector,
    number: int = 1,
    *,
    chosen: Method = FEDAVG,
    examples: int = 10,
    layout: Layout = LAYOUT,
    buffers: Buffers | None = None,
) -> bytes:
    """A well-formed reply that carries an update as it is."""
    blob = encode(Payload.full(layout, update, buffers))
    return Reply(number, identity(chosen).digest, examples, blob).encode()


def broadcast(number: int, last: Acknowledgement | None = None, name: str = "fedsparq", **options: object) -> Broadcast:
    chosen, model = method(name, **options), Model(vector(0)).encode(LAYOUT)
    plan = chosen.plan(LAYOUT)
    return Broadcast(number, last or Acknowledgement(), LAYOUT.digest, identity(chosen), 0, False, (model,), plan=plan)


def counted(state: ClientState, share: float = 1.0) -> Acknowledgement:
    return Acknowledgement(state.round, reply_digest(state.in_flight), share)


def dense(message: bytes) -> NDArray[np.float64]:
    return decode(Reply.decode(message).blob, LAYOUT).dense().astype(np.float64)


def residual(store: MemoryStore) -> NDArray[np.float64]:
    left = store.states[0].compression.residual
    assert left is not None
    return left.astype(np.float64)


def total(*numbers: int) -> NDArray[np.float64]:
    return np.sum([updates(0)(number).astype(np.float64) for number in numbers], axis=0)
