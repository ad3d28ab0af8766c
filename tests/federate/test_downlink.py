"""A compressed broadcast: every client trains on the same public model, whatever it missed."""

import numpy as np
import pytest
from small_federation import LAYOUT, vector

from fedsparq.errors import OptionError
from fedsparq.federate.client import Client, Trained
from fedsparq.federate.downlink import HISTORY, Downlink
from fedsparq.federate.messages import Broadcast, FullWanted, decode_answer
from fedsparq.federate.model import Model
from fedsparq.federate.server import Server
from fedsparq.federate.store import MemoryStore
from fedsparq.layout import Layout
from fedsparq.methods import method, resolver
from fedsparq.methods.registry import broadcast_method

WIDE = Layout.of({"weight": (40, 50)})
STC = method("stc", fraction=0.01)


class Federation:
    """Clients that remember which model they trained on."""

    def __init__(self, down: str | None) -> None:
        chosen = method("fedsparq")
        start = Model(np.zeros(WIDE.size, np.float32))
        self.server = Server(WIDE, chosen, start, downlink=Downlink(WIDE, method(down) if down else None))
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


@pytest.mark.parametrize("down", ["fedsparq", "stc", "top-10"])
def test_changes_to_what_each_client_holds(down: str) -> None:
    federation = Federation(down)
    assert {request.base for request in federation.play((0, 1, 2)).values()} == {0}
    sent = federation.play((0, 1), lost=(1,))
    assert {request.base for request in sent.values()} == {1}
    sent = federation.play((0, 1, 2))
    assert [sent[number].base for number in range(3)] == [2, 1, 1]
    assert [len(sent[number].blobs) for number in range(3)] == [1, 2, 2]


def test_client_without_its_model_asks_for_all_of_it() -> None:
    federation = Federation("stc")
    federation.play((0, 1, 2))
    federation.stores[1] = MemoryStore()
    federation.play((0, 1, 2))
    assert federation.play((0, 1, 2))[1].base == 2


def test_public_model_follows_the_server() -> None:
    """What a change did not carry is in the next: with a model that stands still, the public one arrives at it."""
    rng = np.random.default_rng(0)
    downlink = Downlink(WIDE, method("percentile", percentile=80.0))
    downlink.prepare(1, Model(np.zeros(WIDE.size, np.float32)))
    goal = Model(rng.normal(size=WIDE.size).astype(np.float32))
    for number in range(2, 30):
        downlink.prepare(number, goal)
    assert downlink.public is not None
    assert np.abs(downlink.public.vector - goal.vector).max() < 1e-3


def test_first_model_travels_as_float16() -> None:
    model = Model(np.random.default_rng(0).normal(size=WIDE.size).astype(np.float32))
    plain, halved = Downlink(WIDE, STC), Downlink(WIDE, STC, halve_first=True)
    for downlink in (plain, halved):
        downlink.prepare(1, model)
    (_, (whole,)), (_, (half,)) = plain.parts(0), halved.parts(0)
    assert len(half) < 0.6 * len(whole)
    assert halved.public is not None
    np.testing.assert_array_equal(Model.decode(half, WIDE).vector, halved.public.vector)
    np.testing.assert_array_equal(halved.public.vector, model.vector.astype(np.float16))
    np.testing.assert_array_equal(Model.decode(whole, WIDE).vector, model.vector)


def test_values_beyond_float16_stay_as_they_are() -> None:
    model = Model(np.where(np.arange(LAYOUT.size) % 7 == 0, 1e6, 0.1).astype(np.float32))
    halved = model.halved()
    assert set(halved.vector) == {np.float32(1e6), np.float32(np.float16(0.1))}
    np.testing.assert_array_equal(Model.decode(halved.encode(LAYOUT), LAYOUT).vector, halved.vector)


@pytest.mark.parametrize("name", ["fedsparq-adaptive", "uniform", "stc"])
def test_public_model_stays_close_to_one_that_moves(name: str) -> None:
    """A model that walks on in steps of the same length: the distance to it stops growing."""
    rng = np.random.default_rng(0)
    size, rounds = WIDE.size, 300
    goal = np.zeros(size, np.float32)
    downlink = Downlink(WIDE, broadcast_method(name))
    downlink.prepare(1, Model(goal))
    distance = []
    for number in range(2, rounds):
        goal = goal + (rng.standard_t(3, size=size) / np.sqrt(size)).astype(np.float32)
        downlink.prepare(number, Model(goal))
        assert downlink.public is not None
        distance.append(float(np.linalg.norm(downlink.public.vector - goal)))
    third = rounds // 3
    assert np.mean(distance[-third:]) < 1.5 * np.mean(distance[third : 2 * third])


@pytest.mark.parametrize("name", ["fedpaq", "qsgd"])
def test_methods_that_are_not_contractive_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match="not contractive"):
        broadcast_method(name)
    with pytest.raises(OptionError, match="not contractive"):
        broadcast_method("fedsparq-adaptive", rounding="stochastic")


def test_what_a_change_did_not_carry_is_not_kept_a_second_time() -> None:
    downlink = Downlink(LAYOUT, broadcast_method("fedsparq"))
    downlink.prepare(1, Model(vector(0)))
    moved = np.linspace(0, 1, LAYOUT.size, dtype=np.float32)
    downlink.prepare(2, Model(moved))
    assert downlink.public is not None
    assert downlink.state is not None
    assert downlink.state.residual is not None
    assert not np.array_equal(downlink.public.vector, moved)
    assert not downlink.state.residual.any()


def test_round_prepared_twice_has_one_model() -> None:
    downlink = Downlink(LAYOUT, STC)
    downlink.prepare(1, Model(vector(0)))
    downlink.prepare(2, Model(vector(1)))
    before = downlink.public
    downlink.prepare(2, Model(vector(5)))
    assert downlink.public is before


def test_changes_are_kept_only_while_they_are_worth_it() -> None:
    rng = np.random.default_rng(0)
    for chosen, most in ((STC, HISTORY), (method("fedavg"), 1)):
        downlink = Downlink(WIDE, chosen)
        for number in range(1, 100):
            downlink.prepare(number, Model(rng.normal(size=WIDE.size).astype(np.float32)))
        assert len(downlink.changes) <= most
        assert sum(map(len, downlink.changes.values())) <= 4 * WIDE.size
        downlink.holds(0, 98)
        downlink.holds(1, 20)
        assert downlink.parts(1)[0] == 0
        assert downlink.parts(0)[0] == (98 if downlink.changes else 0)
