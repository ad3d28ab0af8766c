"""Clients and a server under every interleaving of loss, delay, repetition, damage, crash and restored backup.

One law, however messages travel: the core alone, in any order of its messages; a round at a time, Flower with our own
server, around a strategy of its own, and around one with a loop of its own (`over_flower.py`).
The books are in `protocol_books.py`.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from over_flower import Foreign, OverFlower, OwnLoop, OwnServer
from protocol_books import CLIENTS, LAYOUT, METHODS, Held, Machine, Snapshot
from sharing import Sharing

from fedsparq.federate.checkpoint import load_server, save_server
from fedsparq.federate.client import Client, Trained
from fedsparq.federate.downlink import Downlink, Lattice
from fedsparq.federate.messages import FullWanted, decode_answer
from fedsparq.federate.model import Model
from fedsparq.federate.server import Server
from fedsparq.federate.state import ClientState, HeldModel
from fedsparq.federate.store import Loaded
from fedsparq.federate.validation import Validation
from fedsparq.layout import Layout
from fedsparq.methods import method, resolver
from fedsparq.protocols import GradientHook

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


class CrashError(Exception):
    """A client's process ends here."""


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


class Protocol(Machine):
    """The core alone."""

    @initialize(
        chosen=st.sampled_from(METHODS),
        validation=st.sampled_from(VALIDATIONS),
        sharing=st.booleans(),
        down=st.sampled_from([None, Lattice(), Lattice("one-bit")]),
        seed=st.integers(0, 2**32),
    )
    def begin(
        self,
        chosen: tuple[str, dict[str, object]],
        validation: Validation,
        sharing: bool,
        down: Lattice | None,
        seed: int,
    ) -> None:
        self.method, self.validation, self.down = method(chosen[0], **chosen[1]), validation, down
        self.sharing = sharing
        self.begin_books(seed)
        if sharing:
            self.method = self.method.with_server(Sharing(self.drawn_share))
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.checkpoint = Path(self.folder.name) / "server"
        self.server = self.new_server()
        save_server(self.server, self.checkpoint)
        self.open = False
        self.disks = {client: Disk() for client in CLIENTS}
        self.down_wire: list[tuple[int, bytes]] = []
        self.up_wire: list[tuple[int, bytes]] = []

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def new_server(self) -> Server:
        start = Model(np.zeros(LAYOUT.size, np.float32))
        down = Downlink(LAYOUT, self.down)
        return Server(LAYOUT, self.method, start, validation=self.validation, downlink=down)

    # the server

    def open_round(self, asked: set[int]) -> None:
        self.server.open_round(asked)
        self.open = True
        number, public = self.server.state.round + 1, self.server.downlink.public
        assert public is not None
        self.check_public(number, public.vector)
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
        self.close(self.books.model, self.server.state.model.vector.astype(np.float64))

    def restart_server(self) -> None:
        self.server = self.new_server()
        load_server(self.server, self.checkpoint)
        self.open = False

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
            remarks = answer.remarks if answer is not None else self.remarks_of(client, before, held, message)
            assert disk.content is not None
            self.enter_state(client, before, disk.content, disk.held, remarks)
        if answer is not None and answer.message is not None:
            self.up_wire.append((client, answer.message))

    def client(self, number: int) -> Client:
        return Client(number, LAYOUT, self.train, self.disks[number], resolver(), seed=1)

    def train(self, model: Model, hook: GradientHook | None, number: int) -> Trained:
        assert np.array_equal(model.vector, self.public[number]), "a client trains on the public model"
        self.trained = self.rng.normal(size=LAYOUT.size).astype(np.float32)
        return Trained(self.trained, 10)

    def remarks_of(self, client: int, before: Snapshot | None, held: bytes | None, message: bytes) -> tuple[str, ...]:
        """What a client that died after saving would have said: its twin is asked."""
        disk = Disk(before and before.data, held=held)
        twin = Client(client, LAYOUT, lambda *_: Trained(self.trained, 10), disk, resolver(), seed=1)
        return twin.answer(message).remarks

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

    def held(self, client: int) -> Held:
        return self.disks[client].held

    def write(self, client: int, data: bytes | None, held: Held) -> None:
        assert not isinstance(held, dict)
        self.disks[client].content, self.disks[client].held = data, held

    @staticmethod
    def take(wire: list[tuple[int, bytes]], place: int, keep: bool) -> tuple[int, bytes]:
        place %= len(wire)
        return wire[place] if keep and len(wire) < 40 else wire.pop(place)


NORMAL = settings(max_examples=80, stateful_step_count=50, suppress_health_check=list(HealthCheck), deadline=None)


LONG = settings(NORMAL, max_examples=2000, stateful_step_count=100, derandomize=False)
FLOWER = settings(NORMAL, max_examples=12, stateful_step_count=12)


def test_nothing_is_lost_and_nothing_counts_twice() -> None:
    run_state_machine_as_test(Protocol, settings=NORMAL)


@pytest.mark.parametrize("adapter", [OwnServer, Foreign, OwnLoop])
def test_nothing_is_lost_over_flower(adapter: type[OverFlower]) -> None:
    run_state_machine_as_test(adapter, settings=FLOWER)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [Protocol, OwnServer, Foreign, OwnLoop])
def test_nothing_is_lost_in_thousands_of_long_interleavings(adapter: type[Machine]) -> None:
    many = LONG if adapter is Protocol else settings(FLOWER, max_examples=200, stateful_step_count=30)
    run_state_machine_as_test(adapter, settings=many)
