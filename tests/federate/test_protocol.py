"""Clients and a server under every interleaving of loss, delay, repetition, damage, crash and restored backup.

The machine keeps books of its own: every update a client was trained to, and which share of which reply was counted. It
never looks at what a client believes; only at its residual, at what is in flight, and at what it reports. The law is

    all updates = sum of share x reply + in flight + residual
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray
from sharing import Sharing

from fedsparq.federate.checkpoint import load_server, save_server
from fedsparq.federate.client import Client, Trained
from fedsparq.federate.downlink import Downlink
from fedsparq.federate.messages import FullWanted, Reply, decode_answer, reply_digest
from fedsparq.federate.model import Model
from fedsparq.federate.server import Server
from fedsparq.federate.state import ClientState, HeldModel
from fedsparq.federate.store import Loaded
from fedsparq.federate.validation import Validation
from fedsparq.layout import Layout
from fedsparq.method import Method
from fedsparq.methods import method, resolver
from fedsparq.protocols import GradientHook
from fedsparq.wire import decode

LAYOUT = Layout.of({"weight": (20, 5), "bias": (5,)})
CLIENTS = range(3)
METHODS = [("fedsparq", {}), ("fedsparq", {"rounding": "stochastic"}), ("stc", {"fraction": 0.1}), ("percentile", {})]
VALIDATIONS = [
    Validation(),
    Validation(min_replies=2),
    Validation(norm_limit="15"),
    Validation(norm_limit="1.2x median"),
    Validation(min_replies=2, norm_limit="2x median"),
]
FATES = [
    *["fine"] * 5,
    "not asked",
    "not heard",
    "asked twice",
    "sent twice",
    "late",
    "lost",
    "twin",
    "before saving",
    "after saving",
]
Vector = NDArray[np.float64]
Key = tuple[int, int]
"""A reply: client and digest. Two clients may have nothing to say in the same words."""


class CrashError(Exception):
    """A client's process ends here."""


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
    held: bytes | None
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
class Disk:
    """A client's store. It may die before or after it has written; the held model is another file, and may be lost."""

    content: bytes | None = None
    dies: str = "never"
    held: bytes | None = None

    def load(self, client: int, layout: Layout) -> Loaded:
        return Loaded(None if self.content is None else ClientState.decode(self.content, layout))

    def save(self, client: int, state: ClientState) -> None:
        if self.dies == "before saving":
            raise CrashError
        self.content = state.encode()
        if self.dies == "after saving":
            raise CrashError

    def load_held(self, client: int, layout: Layout) -> HeldModel | None:
        return None if self.held is None else HeldModel.decode(self.held, layout)

    def save_held(self, client: int, held: HeldModel) -> None:
        self.held = b"".join(held.encode_parts())


@dataclass
class Books:
    """What was counted, by the server's word that survives a crash."""

    counted: dict[Key, float] = field(default_factory=dict)
    """The share of each reply."""
    model: Vector = field(default_factory=lambda: np.zeros(LAYOUT.size))
    velocity: Vector = field(default_factory=lambda: np.zeros(LAYOUT.size))


class Protocol(RuleBasedStateMachine):
    @initialize(
        chosen=st.sampled_from(METHODS),
        validation=st.sampled_from(VALIDATIONS),
        sharing=st.booleans(),
        down=st.sampled_from([None, method("fedsparq"), method("stc", fraction=0.05)]),
        seed=st.integers(0, 2**32),
    )
    def begin(
        self,
        chosen: tuple[str, dict[str, object]],
        validation: Validation,
        sharing: bool,
        down: Method | None,
        seed: int,
    ) -> None:
        self.method, self.validation, self.down = method(chosen[0], **chosen[1]), validation, down
        self.sharing, self.rng = sharing, np.random.default_rng(seed)
        if sharing:
            self.method = self.method.with_server(Sharing(self.drawn_share))
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.checkpoint = Path(self.folder.name) / "server"
        self.server = self.new_server()
        save_server(self.server, self.checkpoint)
        self.books, self.open = Books(), False
        self.disks = {client: Disk() for client in CLIENTS}
        self.now: dict[int, Snapshot | None] = dict.fromkeys(CLIENTS)
        self.history: dict[int, list[Snapshot]] = {client: [] for client in CLIENTS}
        self.sent: dict[Key, Sent] = {}
        self.down_wire: list[tuple[int, bytes]] = []
        self.up_wire: list[tuple[int, bytes]] = []
        self.public: dict[int, NDArray[np.float32]] = {}
        self.trained: NDArray[np.float32] | None = None
        self.lineages = 0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def new_server(self) -> Server:
        start = Model(np.zeros(LAYOUT.size, np.float32))
        down = Downlink(LAYOUT, self.down)
        return Server(LAYOUT, self.method, start, validation=self.validation, downlink=down)

    def drawn_share(self, client: int, number: int) -> float:
        """Drawn anew whenever a round is closed: one that is closed again after a crash may decide otherwise."""
        return float(self.rng.choice([0.0, 0.0, 0.25, self.rng.random(), 1.0]))

    # the server

    def open_round(self, asked: set[int]) -> None:
        self.server.open_round(asked)
        self.open = True
        number, public = self.server.state.round + 1, self.server.downlink.public
        assert public is not None
        known = self.public.setdefault(number, public.vector.copy())
        assert np.array_equal(known, public.vector), "a round that is opened again has the same model"
        self.down_wire += [(client, self.server.broadcast(client)) for client in sorted(asked)]

    @precondition(lambda self: self.open)
    @rule(dies=st.sampled_from([False, False, True]))
    def close_round(self, dies: bool) -> None:
        outcome = self.server.close_round()
        self.open = False
        if dies:
            self.restart_server()
            return
        counted = {client: self.server.state.counted[client] for client in outcome.counted}
        assert all(last.round == outcome.round for last in counted.values())
        save_server(self.server, self.checkpoint)
        event(f"round closed with {len(counted)} replies")
        if any("let nothing of it count" in happened.reason for happened in outcome.events):
            event("taken, but nothing of it counted")
        self.count({(client, last.digest): last.share for client, last in counted.items()}, outcome.round)

    def restart_server(self) -> None:
        self.server = self.new_server()
        load_server(self.server, self.checkpoint)
        self.open = False

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
        self.close(self.books.model, self.server.state.model.vector.astype(np.float64))

    @precondition(lambda self: not self.open)
    @rule(
        fates=st.fixed_dictionaries({client: st.sampled_from(FATES) for client in CLIENTS}),
        end=st.sampled_from(["close", "close", "close", "leave open", "die", "die after closing"]),
    )
    def play_round(self, fates: dict[int, str], end: str) -> None:
        """A round in one go, for the machine to get on; the rules below do the same in any order."""
        asked = {client for client, fate in fates.items() if fate != "not asked"}
        if not asked:
            return
        self.open_round(asked)
        for client in sorted(asked):
            self.play_client(client, fates[client])
        if end == "die":
            self.restart_server()
        elif end != "leave open":
            self.close_round(dies=end == "die after closing")

    def play_client(self, client: int, fate: str) -> None:
        """The client's part in the round: its broadcast is the last one on the wire, and so will be its reply."""
        if fate == "not heard":
            return
        dies = fate if fate in ("before saving", "after saving") else "never"
        place = next(place for place, (to, _) in reversed(list(enumerate(self.down_wire))) if to == client)
        length, before = len(self.up_wire), self.now[client]
        self.receive_broadcast(place, keep=fate in ("asked twice", "twin"), damaged=False, dies=dies)
        if fate == "twin":
            self.put_back(client, before)
            self.receive_broadcast(place, keep=False, damaged=False, dies=dies)
        if len(self.up_wire) > length and fate not in ("late", "lost"):
            self.receive_reply(length, keep=fate == "sent twice", damaged=False)
        elif len(self.up_wire) > length and fate == "lost":
            self.take(self.up_wire, length, keep=False)

    # the clients

    @precondition(lambda self: self.down_wire)
    @rule(
        place=st.integers(0, 63),
        keep=st.booleans(),
        damaged=st.sampled_from([False] * 7 + [True]),
        dies=st.sampled_from(["never"] * 6 + ["before saving", "after saving"]),
    )
    def receive_broadcast(self, place: int, keep: bool, damaged: bool, dies: str) -> None:
        client, message = self.take(self.down_wire, place, keep)
        if damaged:
            answer = self.client(client).answer(self.flipped(message))
            assert answer.message is None
            assert "could not be read" in answer.remarks[-1]
            return
        before, disk = self.now[client], self.disks[client]
        content, held, disk.dies, self.trained = disk.content, disk.held, dies, None
        try:
            answer = self.client(client).answer(message)
        except CrashError:
            answer = None
        disk.dies = "never"
        if disk.content is not content:
            self.enter_state(client, before, held, message, answer.remarks if answer else None)
        if answer is not None and answer.message is not None:
            self.up_wire.append((client, answer.message))

    def client(self, number: int) -> Client:
        return Client(number, LAYOUT, self.train, self.disks[number], resolver(), seed=1)

    def train(self, model: Model, hook: GradientHook | None, number: int) -> Trained:
        assert np.array_equal(model.vector, self.public[number]), "a client trains on the public model"
        self.trained = self.rng.normal(size=LAYOUT.size).astype(np.float32)
        return Trained(self.trained, 10)

    def enter_state(
        self,
        client: int,
        before: Snapshot | None,
        held: bytes | None,
        message: bytes,
        remarks: tuple[str, ...] | None,
    ) -> None:
        """A new state is on the disk. A client that died after saving could not say anything: it is asked what it
        would have said."""
        disk = self.disks[client]
        assert disk.content is not None
        assert self.trained is not None
        if remarks is None:
            disk_before = Disk(before and before.data, held=held)
            twin = Client(client, LAYOUT, lambda *_: Trained(self.trained, 10), disk_before, resolver(), seed=1)
            remarks = twin.answer(message).remarks
        anew = before is None or any("residual dropped" in text or "residual lost" in text for text in remarks)
        for word in ("put back", "not counted beyond", "older copy", "residual lost", "a part of it sent"):
            if any(word in text for text in remarks):
                event(word)
        if any("older copy" in text for text in remarks):
            assert before is not None
            known = [key for key in self.books.counted if key[0] == client and key not in before.replies]
            assert known, "nothing was counted that the state does not know: its residual need not be dropped"
        self.lineages += anew
        state = ClientState.decode(disk.content, LAYOUT)
        reply = Reply.decode(state.in_flight)
        key = client, reply_digest(state.in_flight)
        deltas = self.trained.astype(np.float64) + (0 if anew or before is None else before.deltas)
        replies = frozenset() if anew or before is None else before.replies
        lineage = self.lineages if anew or before is None else before.lineage
        snapshot = Snapshot(disk.content, deltas, lineage, replies | {key}, disk.held)
        self.now[client] = snapshot
        self.history[client].append(snapshot)
        dense = decode(reply.blob, LAYOUT).dense().astype(np.float64)
        self.sent[key] = Sent(reply.round, dense, snapshot)

    @precondition(lambda self: self.up_wire)
    @rule(place=st.integers(0, 63), keep=st.booleans(), damaged=st.sampled_from([False] * 7 + [True]))
    def receive_reply(self, place: int, keep: bool, damaged: bool) -> None:
        client, message = self.take(self.up_wire, place, keep)
        verdict = self.server.receive(client, self.flipped(message) if damaged else message)
        assert not (damaged and verdict.taken)
        if verdict.resend:
            assert isinstance(decode_answer(message), FullWanted)
            event("whole model sent again")
            self.down_wire.append((client, self.server.broadcast(client)))

    @precondition(lambda self: len(self.down_wire) + len(self.up_wire) > 6)
    @rule()
    def lose_messages(self) -> None:
        self.down_wire, self.up_wire = self.down_wire[-2:], self.up_wire[-2:]

    @rule(client=st.sampled_from(list(CLIENTS)), back=st.integers(0, 4))
    def restore(self, client: int, back: int) -> None:
        """Put a client back to one of its last states, or to nothing."""
        states = self.history[client]
        self.put_back(client, states[-back] if 0 < back <= len(states) else None)

    def put_back(self, client: int, snapshot: Snapshot | None) -> None:
        """The state goes back; the held model goes with it, stays as it is, or is lost."""
        disk = self.disks[client]
        self.now[client], disk.content = snapshot, snapshot and snapshot.data
        kept = [snapshot and snapshot.held, disk.held, None][int(self.rng.integers(3))]
        event("a held model is lost" if kept is None else "a held model stays")
        disk.held = kept

    # the books

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

    @staticmethod
    def take(wire: list[tuple[int, bytes]], place: int, keep: bool) -> tuple[int, bytes]:
        place %= len(wire)
        return wire[place] if keep and len(wire) < 40 else wire.pop(place)

    def flipped(self, message: bytes) -> bytes:
        data = bytearray(message)
        data[int(self.rng.integers(len(data)))] ^= 1 << int(self.rng.integers(8))
        return bytes(data)


NORMAL = settings(max_examples=80, stateful_step_count=50, suppress_health_check=list(HealthCheck), deadline=None)


def test_nothing_is_lost_and_nothing_counts_twice() -> None:
    run_state_machine_as_test(Protocol, settings=NORMAL)


@pytest.mark.slow
def test_nothing_is_lost_in_thousands_of_long_interleavings() -> None:
    run_state_machine_as_test(
        Protocol, settings=settings(NORMAL, max_examples=2000, stateful_step_count=100, derandomize=False)
    )
