"""Sound bytes of every kind, for a small model: what an honest server, client or file would hold."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedsparq import secure
from fedsparq.federate.checkpoint import save_server
from fedsparq.federate.client import Client, Trained
from fedsparq.federate.downlink import Downlink, Lattice
from fedsparq.federate.messages import Acknowledgement, Broadcast, FullWanted, Reply, reply_digest
from fedsparq.federate.model import Model
from fedsparq.federate.server import Server
from fedsparq.federate.state import ClientState
from fedsparq.federate.store import MemoryStore
from fedsparq.federate.validation import Validation
from fedsparq.layout import Buffers, Layout, Vector
from fedsparq.method import Identity, Method
from fedsparq.methods import method, resolver
from fedsparq.methods.registry import aggregator, optimizer
from fedsparq.payload import Dense, Float32Values, Payload, Sketch
from fedsparq.payload.support import RoundPlan, SupportPlan
from fedsparq.secure.keys import KEY, SIGNATURE
from fedsparq.secure.messages import (
    SEALED,
    Accusation,
    Advertised,
    Collected,
    Confirmations,
    Confirmed,
    Invitation,
    Masked,
    Neighbourhood,
    PublicKeys,
    Shared,
    Survivors,
    Unmasking,
)
from fedsparq.secure.shamir import SHARE
from fedsparq.wire import encode

LAYOUT = Layout.of(
    {
        "w": np.zeros((20, 9), np.float32),
        "none": np.zeros(0, np.float32),
        "b": np.zeros(9, np.float32),
        "bn.running_var": np.zeros(5, np.float32),
        "bn.num_batches_tracked": np.zeros(1, np.int64),
    }
)
BUFFERS = Buffers(np.ones(5, np.float32), np.array([3], np.int64))
KINDS = ("fedsparq", "fedsparq-adaptive", "fedavg", "fedpaq", "stc", "random-10", "qsgd", "eden", "uniform", "demo")
SENT = ("fedsparq", "fedavg", "random-10")
"""Those whose kinds of values the server's method sends as well."""
STATEFUL = ("fedsparq", "fedsparq-adaptive", "ef21", "stc", "dgc")
"""Methods whose clients remember something; the first one is the server's."""
METHOD = method("fedsparq").with_server(aggregator("centered-clipping"), optimizer("momentum"))
SERVED = (
    METHOD,
    method("fedsparq").with_server(aggregator("robust"), optimizer("sparse-step")),
    method("ef21"),
)
"""Methods of servers whose parts remember something."""
DOWN = method("fedsparq-adaptive", rounding="nearest", bits=0.7)


def update(seed: int) -> Vector:
    return np.random.default_rng(seed).laplace(scale=0.01, size=LAYOUT.size).astype(np.float32)


_MODEL = Model(update(99), BUFFERS)


@cache
def blobs() -> tuple[bytes, ...]:
    """Updates of many methods."""
    found = []
    for name in KINDS:
        chosen = method(name)
        payload, _ = chosen.compress(update(len(name)), chosen.init(LAYOUT), np.random.default_rng(1))
        found.append(encode(replace(payload, buffers=BUFFERS)))
    table = Sketch(180, 7, update(1)[:15].reshape(3, 5))
    rest = tuple(Float32Values(np.ones(tensor.size, np.float32)) for tensor in LAYOUT.parameters[1:])
    return (*found, encode(Payload(LAYOUT, Dense(LAYOUT.size), (table, *rest), BUFFERS)))


def new_server(served: Method = METHOD) -> Server:
    down = Downlink(LAYOUT, Lattice()) if served is METHOD else None
    made = Server(LAYOUT, served, _MODEL, validation=Validation(norm_limit="3x median"), downlink=down)
    made.open_round([0, 1])
    return made


SERVER = new_server()


@cache
def replies() -> tuple[bytes, ...]:
    digest = SERVER.identity_of(0).digest
    sent = (blob for name, blob in zip(KINDS, blobs(), strict=False) if name in SENT)
    own = (Reply(1, digest, 10, blob).encode() for blob in sent)
    return (*own, FullWanted(1).encode())


def new_client(store: MemoryStore) -> Client:
    return Client(0, LAYOUT, lambda start, hook, number: Trained(update(number), 10, BUFFERS), store, resolved)


@lru_cache(256)
def _made(identity: bytes) -> Method:
    return resolver()(Identity.decode(identity))


def resolved(identity: Identity) -> Method:
    """Methods that were made before are not made again: that is most of a client's work on a small model."""
    return _made(identity.encode())


@cache
def _store_after_two_rounds(name: str) -> MemoryStore:
    store = MemoryStore()
    for number in (1, 2):
        sent = broadcast(number, name, plan=method(name).plan(LAYOUT)).encode()
        assert new_client(store).answer(sent).message is not None
    return store


def store_after_two_rounds(name: str = STATEFUL[0]) -> MemoryStore:
    """Another one with the same state and held model."""
    store = _store_after_two_rounds(name)
    return MemoryStore({**store.states}, {**store.held})


def client_after_two_rounds(name: str = STATEFUL[0]) -> ClientState:
    return _store_after_two_rounds(name).states[0]


@cache
def _named(name: str) -> Identity:
    found = (METHOD if name == STATEFUL[0] else method(name)).identity
    assert found is not None
    return found


def broadcast(number: int, name: str = STATEFUL[0], last: Acknowledgement | None = None, **more: Any) -> Broadcast:
    counted, parts = last or Acknowledgement(), (_MODEL.encode(LAYOUT),)
    whole = Broadcast(number, counted, LAYOUT.digest, _named(name), 0, True, parts)
    return replace(whole, **more)


@cache
def third_broadcast(name: str) -> bytes:
    return broadcast(3, name).encode()


@cache
def broadcasts() -> tuple[bytes, ...]:
    """To a client that has answered two rounds."""
    own = Acknowledgement(2, reply_digest(client_after_two_rounds().in_flight), 0.25)
    change, _ = DOWN.compress(update(5), DOWN.init(LAYOUT), np.random.default_rng(1))
    several = {"also_counted": (Acknowledgement(1, 5, 0.5),), "pending": (1,)}
    plan = {"plan": RoundPlan(SupportPlan.of_indices(LAYOUT.size, 20, 7, np.arange(9, dtype=np.uint32)), 1.0)}
    made = [broadcast(3), broadcast(3, last=own), broadcast(3, last=own, norm_limit=0.1)]
    made += [broadcast(3, last=own, **several), broadcast(3, last=own, **plan)]
    made += [broadcast(3, last=own, base=2, blobs=(encode(replace(change, buffers=BUFFERS)),))]
    made += [broadcast(3, hold=False), broadcast(3, blobs=(_MODEL.encode(LAYOUT), encode(change)))]
    return tuple(each.encode() for each in made)


@cache
def states() -> tuple[bytes, ...]:
    found = [client_after_two_rounds(name).encode() for name in STATEFUL]
    first = client_after_two_rounds()
    return (*found, replace(first, waiting=(first.in_flight,), model=None).encode())


@cache
def scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="fedsparq-fuzz-"))


@cache
def checkpoints() -> tuple[bytes, ...]:
    found = []
    for served in SERVED:
        made = new_server(served)
        for _ in range(2):
            assert made.receive(0, reply_to(made)).taken
            made.close_round()
            save_server(made, scratch() / "sound")
            found.append((scratch() / "sound").read_bytes())
            made.open_round([0, 1])
    return tuple(found)


def reply_to(server: Server) -> bytes:
    return Reply(server.state.round + 1, server.identity_of(0).digest, 10, blobs()[0]).encode()


@cache
def secure_messages() -> tuple[bytes, ...]:
    """One of each kind of a secure sum among five clients."""
    keys = PublicKeys(*(bytes([n]) * KEY for n in range(4)), bytes(SIGNATURE))
    sealed, signatures = ({client: bytes(size) for client in (0, 2, 300)} for size in (SEALED, SIGNATURE))
    some, terms = frozenset({0, 2, 300}), secure.Terms.usual("federation", 7, 100, 16, 5, colluders=1)
    made = [Invitation(3, terms), Advertised(keys), Neighbourhood({4: bytes(KEY), 1: bytes(KEY)}, {1: keys, 4: keys})]
    made += [Shared(sealed), Collected(some, sealed), Masked(b"receipt!", bytes(SIGNATURE), bytes(200))]
    made += [Survivors(some, signatures), Confirmed(bytes(SIGNATURE)), Confirmations(signatures)]
    made += [Unmasking({1: bytes(SHARE), 2: bytes(SHARE)}), Accusation(2)]
    return tuple(each.encode() for each in made)
