"""A compressed broadcast: every client trains on the same public model, whatever it missed."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsparq.federate.client import Client, Trained
from fedsparq.federate.downlink import HISTORY, Downlink, Lattice
from fedsparq.federate.lattice import FirstModel, grid_of, sum_payload
from fedsparq.federate.messages import Broadcast, FullWanted, decode_answer
from fedsparq.federate.model import Model
from fedsparq.federate.server import Server
from fedsparq.federate.store import MemoryStore
from fedsparq.layout import Layout
from fedsparq.methods import method, resolver
from fedsparq.payload import Payload
from fedsparq.wire import decode

WIDE = Layout.of({"weight": (40, 50)})


class Federation:
    """Clients that remember which model they trained on."""

    def __init__(self, lattice: Lattice | None) -> None:
        chosen = method("fedsparq")
        start = Model(np.random.default_rng(0).normal(size=WIDE.size).astype(np.float32))
        self.server = Server(WIDE, chosen, start, downlink=Downlink(WIDE, lattice))
        self.stores = {number: MemoryStore() for number in range(3)}
        self.seen: dict[int, np.ndarray] = {}

    def client(self, number: int) -> Client:
        def train(model: Model, *_: object) -> Trained:
            self.seen[number] = model.vector
            rng = np.random.default_rng([number, self.server.state.round])
            return Trained(rng.normal(size=WIDE.size).astype(np.float32), 1)

        return Client(number, WIDE, train, self.stores[number], resolver())

    def play(self, heard: tuple[int, ...], lost: tuple[int, ...] = ()) -> dict[int, Broadcast]:
        """A round; `heard` clients get their broadcast, the replies of `lost` ones do not arrive."""
        self.server.open_round(range(3))
        self.seen = {}
        sent = {}
        for number in heard:
            message = self.server.broadcast(number)
            sent[number] = Broadcast.decode(message)
            answer = self.client(number).answer(message)
            assert answer.message is not None
            if isinstance(decode_answer(answer.message), FullWanted):
                assert self.server.receive(number, answer.message).resend
                assert not self.server.receive(number, answer.message).resend, "once a round is enough"
                message = self.server.broadcast(number)
                assert Broadcast.decode(message).base == 0
                answer = self.client(number).answer(message)
                assert answer.message is not None
            if number not in lost:
                assert self.server.receive(number, answer.message).taken
        public = self.server.downlink.public
        assert public is not None
        assert all(np.array_equal(model, public.vector) for model in self.seen.values())
        assert set(self.seen) == set(heard)
        self.server.close_round()
        return sent


def test_whole_each_time_without_a_method() -> None:
    all_of_them = Federation(None)
    for _ in range(3):
        sent = all_of_them.play((0, 1, 2))
        assert {(request.base, request.hold) for request in sent.values()} == {(0, False)}


@pytest.mark.parametrize("first", ["one-bit", "8-bit"])
def test_a_client_that_missed_rounds_is_sent_one_message(first: FirstModel) -> None:
    federation = Federation(Lattice(first))
    assert {request.base for request in federation.play((0, 1, 2)).values()} == {0}
    for _ in range(3):
        federation.play((0,))
    sent = federation.play((0, 1, 2))
    assert [sent[number].base for number in range(3)] == [4, 1, 1]
    assert [len(sent[number].blobs) for number in range(3)] == [1, 1, 1]
    assert sent[1].blobs[0] is not sent[0].blobs[0]
    assert sent[1].blobs == sent[2].blobs


def test_a_client_whose_replies_were_lost_takes_the_change_back() -> None:
    """The server believes that it holds an earlier version, and sends the change since; no second message is needed."""
    federation = Federation(Lattice())
    federation.play((0, 1, 2))
    for _ in range(4):
        assert federation.play((0, 1, 2), lost=(1,))[1].base == 1
    assert federation.play((0, 1, 2))[1].base == 1
    assert federation.play((0, 1, 2))[1].base == 6


def test_client_without_its_model_asks_for_all_of_it() -> None:
    federation = Federation(Lattice())
    federation.play((0, 1, 2))
    federation.stores[1] = MemoryStore()
    federation.play((0, 1, 2))
    assert federation.play((0, 1, 2))[1].base == 2


def walked(downlink: Downlink, rounds: int, seed: int = 0) -> list[np.ndarray]:
    """Let a model walk, with replies of a third of its step; return all public models."""
    rng, model, publics = np.random.default_rng(seed), np.zeros(WIDE.size, np.float32), []
    model += rng.normal(size=WIDE.size).astype(np.float32)
    for number in range(1, rounds + 1):
        downlink.prepare(number, Model(model))
        assert downlink.public is not None
        publics.append(downlink.public.vector)
        for _ in range(3):
            change = (0.03 * rng.standard_t(3, size=WIDE.size)).astype(np.float32)
            downlink.replied(Payload.full(WIDE, change))
            model = model + change / 3
    return publics


@given(seed=st.integers(0, 2**32), first=st.sampled_from(["one-bit", "8-bit"]), rounds=st.integers(2, 12))
@settings(max_examples=20, deadline=None)
def test_sums_of_changes_are_exact(seed: int, first: FirstModel, rounds: int) -> None:
    downlink = Downlink(WIDE, Lattice(first))
    publics = walked(downlink, rounds, seed)
    for base in range(rounds):
        if base:
            downlink.holds(0, base)
        known, blobs = downlink.parts(0)
        start = publics[known - 1] if known else np.zeros(WIDE.size, np.float32)
        vector = start.copy()
        for blob in blobs:
            decode(blob, WIDE).add_to(vector)
        assert vector.tobytes() == publics[-1].tobytes()
        for blob in blobs:
            decode(blob, WIDE).add_to(vector, -1.0)
        assert vector.tobytes() == (start + np.float32(0)).tobytes()


def test_the_public_model_stays_within_the_dead_zone() -> None:
    rng = np.random.default_rng(1)
    downlink = Downlink(WIDE, Lattice())
    model = rng.normal(size=WIDE.size).astype(np.float32)
    downlink.prepare(1, Model(model))
    for number in range(2, 40):
        change = (0.03 * rng.standard_t(3, size=WIDE.size)).astype(np.float32)
        downlink.replied(Payload.full(WIDE, change))
        downlink.holds(0, number - 1)
        model = model + change
        downlink.prepare(number, Model(model))
        assert downlink.public is not None
        assert np.abs(downlink.public.vector - model).max() <= 0.6 * downlink.steps.max() * (1 + 1e-6)
        assert np.log2(downlink.steps) == np.rint(np.log2(downlink.steps))


def test_one_reply_cannot_make_the_steps_coarse() -> None:
    honest, attacked = Downlink(WIDE, Lattice()), Downlink(WIDE, Lattice())
    rng = np.random.default_rng(2)
    model = rng.normal(size=WIDE.size).astype(np.float32)
    for downlink in (honest, attacked):
        downlink.prepare(1, Model(model))
    for number in range(4):
        change = (0.03 * rng.normal(size=WIDE.size)).astype(np.float32)
        honest.replied(Payload.full(WIDE, change))
        attacked.replied(Payload.full(WIDE, change * np.float32(1e6 if number == 0 else 1)))
    for downlink in (honest, attacked):
        downlink.prepare(2, Model(model + np.float32(0.01)))
    assert attacked.steps[0] <= 2 * honest.steps[0]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_one_bit_model_is_its_own_one_bit_model(scale: float) -> None:
    model = Model((scale * np.random.default_rng(3).normal(size=WIDE.size)).astype(np.float32))
    first = Lattice("one-bit").start(WIDE, model)
    assert np.unique(np.abs(first.vector)).size == 1
    np.testing.assert_allclose(np.abs(first.vector[0]), np.sqrt(np.square(model.vector).mean()), rtol=1e-4)
    assert Lattice("one-bit").start(WIDE, first).vector.tobytes() == first.vector.tobytes()
    downlink = Downlink(WIDE, Lattice("one-bit"))
    downlink.prepare(1, first)
    assert downlink.public is not None
    assert downlink.public.vector.tobytes() == first.vector.tobytes()
    assert len(downlink.parts(0)[1][0]) < WIDE.size // 8 + 60


def test_a_model_that_outgrows_its_grid_is_sent_in_full() -> None:
    downlink = Downlink(WIDE, Lattice("one-bit"))
    model = np.random.default_rng(4).normal(size=WIDE.size).astype(np.float32)
    for number in range(1, 12):
        downlink.prepare(number, Model(model))
        downlink.holds(0, number)
        model = model * np.float32(4)
    assert downlink.public is not None
    assert downlink.parts(1)[0] == 0
    vector = sum(decode(blob, WIDE).dense() for blob in downlink.parts(1)[1])
    assert vector.tobytes() == downlink.public.vector.tobytes()
    assert grid_of(WIDE, downlink.public.vector)[0] > 1


def test_levels_beyond_16_bits_are_not_summed() -> None:
    grid = grid_of(WIDE, np.ones(WIDE.size, np.float32))
    change = np.zeros(WIDE.size, np.float32)
    change[0], change[1] = grid[0], 2**16 * grid[0]
    assert sum_payload(WIDE, change, grid) is None
    change[0] = 0
    payload = sum_payload(WIDE, change, grid)
    assert payload is not None
    assert payload.dense().tobytes() == change.tobytes()


def test_a_downlink_goes_on_from_what_it_saved() -> None:
    downlink = Downlink(WIDE, Lattice())
    walked(downlink, 5)
    downlink.holds(3, 4)
    facts, arrays = downlink.save()
    again = Downlink(WIDE, Lattice()).restored(downlink.public, json.loads(json.dumps(facts)), arrays)
    for other in (downlink, again):
        other.prepare(6, Model(vector_of(6)))
    assert again.parts(3) == downlink.parts(3)
    assert again.parts(0) == downlink.parts(0)


@pytest.mark.parametrize("name", ["grid", "variance", "steps", "squares"])
@pytest.mark.parametrize("wrong", [np.full(1, np.nan), np.ones((3, 2)), np.ones(5), np.ones(1, np.float32)])
def test_a_saved_downlink_with_other_numbers_is_refused(name: str, wrong: np.ndarray) -> None:
    downlink = Downlink(WIDE, Lattice())
    walked(downlink, 3)
    facts, arrays = downlink.save()
    with pytest.raises((ValueError, KeyError, TypeError)):
        Downlink(WIDE, Lattice()).restored(downlink.public, facts, arrays | {name: wrong})


def vector_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=WIDE.size).astype(np.float32)


def test_round_prepared_twice_has_one_model() -> None:
    downlink = Downlink(WIDE, Lattice())
    downlink.prepare(1, Model(vector_of(0)))
    downlink.prepare(2, Model(vector_of(1)))
    before = downlink.public
    downlink.prepare(2, Model(vector_of(5)))
    assert downlink.public is before


def test_changes_are_kept_only_while_they_are_worth_it() -> None:
    downlink = Downlink(WIDE, Lattice())
    for number in range(1, 100):
        downlink.prepare(number, Model(vector_of(number)))
    assert len(downlink.changes) <= HISTORY
    assert sum(map(len, downlink.changes.values())) <= 4 * WIDE.size
    downlink.holds(0, 98)
    downlink.holds(1, 20)
    assert downlink.parts(0)[0] in (0, 98)
    assert downlink.parts(1)[0] == 0
