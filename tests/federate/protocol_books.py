"""The books of the model test: what each client was trained to, which replies it made, and which share of each counted.

They are kept from outside: nobody asks a client what it believes, only for its residual and its replies. The law is

    all updates = sum of share x reply + in flight + residual
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numpy.typing import NDArray

from fedsparq.federate.messages import Reply, reply_digest
from fedsparq.federate.state import ClientState
from fedsparq.layout import Layout
from fedsparq.method import Method
from fedsparq.wire import decode

LAYOUT = Layout.of({"weight": (20, 5), "bias": (5,)})
CLIENTS = range(3)
METHODS = [("fedsparq", {}), ("fedsparq", {"rounding": "stochastic"}), ("stc", {"fraction": 0.1}), ("percentile", {})]
Vector = NDArray[np.float64]
Key = tuple[int, int]
"""A reply: client and digest. Two clients may have nothing to say in the same words."""
Held = dict[str, bytes] | bytes | None
"""What of a client is beside its state, as its adapter keeps it."""


@dataclass(frozen=True)
class Snapshot:
    """A state on a client's disk, and what the books say about it."""

    data: bytes
    deltas: Vector
    """The sum of all updates that this state has seen."""
    lineage: int
    """Changes when a client reports that it lost or dropped its residual, and starts from nothing."""
    replies: frozenset[Key]
    """The replies made on the way to this state, in its lineage."""
    held: Held
    """The model that the client held then."""

    @property
    def state(self) -> ClientState:
        return ClientState.decode(self.data, LAYOUT)


@dataclass(frozen=True)
class Sent:
    """A reply that left a client once."""

    round: int
    dense: Vector
    source: Snapshot


@dataclass
class Books:
    """What was counted, by the server's word that survives a crash."""

    counted: dict[Key, float] = field(default_factory=dict)
    """The share of each reply."""
    model: Vector = field(default_factory=lambda: np.zeros(LAYOUT.size))
    velocity: Vector = field(default_factory=lambda: np.zeros(LAYOUT.size))


class Machine(RuleBasedStateMachine):
    """Clients in any state, a server that only an adapter knows, and the books of both."""

    method: Method
    sharing: bool

    def begin_books(self, seed: int) -> None:
        self.rng, self.books, self.lineages = np.random.default_rng(seed), Books(), 0
        self.now: dict[int, Snapshot | None] = dict.fromkeys(CLIENTS)
        self.history: dict[int, list[Snapshot]] = {client: [] for client in CLIENTS}
        self.sent: dict[Key, Sent] = {}
        self.trained: NDArray[np.float32] | None = None
        self.drawn: dict[int, float] = {}
        self.public: dict[int, NDArray[np.float32]] = {}

    def write(self, client: int, data: bytes | None, held: Held) -> None:
        """Put these files on a client's disk."""
        raise NotImplementedError

    def drawn_share(self, client: int, number: int) -> float:
        """Drawn anew whenever a round is closed: one that is closed again after a crash may decide otherwise."""
        self.drawn[client % 100] = float(self.rng.choice([0.0, 0.0, 0.25, self.rng.random(), 1.0]))
        return self.drawn[client % 100]

    def check_public(self, number: int, vector: NDArray[np.float32]) -> None:
        """All clients of a round train on one model, bit for bit, however often the round is opened."""
        assert np.array_equal(self.public.setdefault(number, vector.copy()), vector)

    def count(self, shares: dict[Key, float], number: int) -> None:
        """Enter into the books what a round counted; and check that each reply's sender was right about the past."""
        for key, share in shares.items():
            reply = self.sent[key]
            assert key not in self.books.counted, "a reply was counted twice"
            assert reply.round == number
            assert 0 < share <= 1
            self.books.counted[key] = share
            if share < 1:
                event("a part of a reply counted")
            residual = reply.source.state.compression.residual
            assert residual is not None
            owed = (1 - share) * reply.dense + residual
            self.close(reply.source.deltas, self.counted_of(reply.source.lineage) + owed)
        if shares:
            total = sum(share * self.sent[key].dense for key, share in shares.items())
            mean = total if self.sharing else total / len(shares)
            momentum = getattr(self.method.optimizer, "momentum", 0.0)
            self.books.velocity = momentum * self.books.velocity + mean
            self.books.model = self.books.model + self.books.velocity

    def enter_state(
        self, client: int, before: Snapshot | None, data: bytes, held: Held, remarks: tuple[str, ...]
    ) -> None:
        """A new state is on a client's disk, made from the one before; and what the client said about that."""
        assert self.trained is not None
        anew = before is None or any("residual dropped" in text or "residual lost" in text for text in remarks)
        for word in ("put back", "not counted beyond", "older copy", "residual lost", "a part of it sent"):
            if any(word in text for text in remarks):
                event(word)
        if any("older copy" in text for text in remarks):
            assert before is not None
            known = [key for key in self.books.counted if key[0] == client and key not in before.replies]
            assert known, "nothing was counted that the state does not know: its residual need not be dropped"
        self.lineages += anew
        state = ClientState.decode(data, LAYOUT)
        reply = Reply.decode(state.in_flight)
        key = client, reply_digest(state.in_flight)
        deltas = self.trained.astype(np.float64) + (0 if anew or before is None else before.deltas)
        replies = frozenset() if anew or before is None else before.replies
        lineage = self.lineages if anew or before is None else before.lineage
        snapshot = Snapshot(data, deltas, lineage, replies | {key}, held)
        self.now[client] = snapshot
        self.history[client].append(snapshot)
        dense = decode(reply.blob, LAYOUT).dense().astype(np.float64)
        self.sent[key] = Sent(reply.round, dense, snapshot)

    @rule(client=st.sampled_from(list(CLIENTS)), back=st.integers(0, 4))
    def restore(self, client: int, back: int) -> None:
        """Put a client back to one of its last states, or to nothing."""
        states = self.history[client]
        self.put_back(client, states[-back] if 0 < back <= len(states) else None)

    def put_back(self, client: int, snapshot: Snapshot | None) -> None:
        """The state goes back; the held model goes with it, stays as it is, or is lost."""
        self.now[client] = snapshot
        kept = [snapshot and snapshot.held, self.held(client), None][int(self.rng.integers(3))]
        event("a held model is lost" if not kept else "a held model stays")
        self.write(client, snapshot and snapshot.data, kept)

    def held(self, client: int) -> Held:
        raise NotImplementedError

    @invariant()
    def nothing_is_lost(self) -> None:
        """All updates = sum of share x reply + in flight + residual, for each client whose state is no older copy."""
        for client, snapshot in self.now.items() if hasattr(self, "now") else ():
            if snapshot is None:
                continue
            counted = [key for key in self.books.counted if self.sent[key].source.lineage == snapshot.lineage]
            if not set(counted) <= snapshot.replies:
                event("an older copy that does not know it yet")
                continue
            state = snapshot.state
            key = client, reply_digest(state.in_flight)
            in_flight = (1 - self.books.counted.get(key, 0)) * self.sent[key].dense
            assert state.compression.residual is not None
            self.close(snapshot.deltas, self.counted_of(snapshot.lineage) + in_flight + state.compression.residual)

    def counted_of(self, lineage: int) -> Vector:
        counted = self.books.counted.items()
        dense = [share * self.sent[key].dense for key, share in counted if self.sent[key].source.lineage == lineage]
        return np.sum(dense, axis=0) if dense else np.zeros(LAYOUT.size)

    @staticmethod
    def close(left: Vector, right: Vector) -> None:
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-4)

    def flipped(self, message: bytes) -> bytes:
        data = bytearray(message)
        data[int(self.rng.integers(len(data)))] ^= 1 << int(self.rng.integers(8))
        return bytes(data)
