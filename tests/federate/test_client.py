"""What a client does with each broadcast, and what it says about it."""

from dataclasses import replace

import numpy as np
import pytest
from small_federation import FEDSPARQ, LAYOUT, client, reply, server, updates, vector

from fedsparq.compress.method import METHODS, method
from fedsparq.errors import RunError, WireError
from fedsparq.federate.client import Client, Trained, settle
from fedsparq.federate.messages import Broadcast, FullWanted, Receipt, Reply, decode_answer, reply_digest
from fedsparq.federate.model import Model
from fedsparq.federate.portion import within
from fedsparq.federate.rules import Rules, norm
from fedsparq.federate.state import ClientState
from fedsparq.federate.store import MemoryStore
from fedsparq.layout import Layout
from fedsparq.wire.frame import decode

BLOB = Model(vector(0)).encode(LAYOUT)


def broadcast(number: int, told: Receipt | None = None, name: str = "fedsparq", **options: object) -> Broadcast:
    return Broadcast(number, told or Receipt(), LAYOUT.digest, method(name, **options), 0, False, (BLOB,))


def counted(state: ClientState) -> Receipt:
    return Receipt(state.round, reply_digest(state.in_flight))


def dense(message: bytes) -> np.ndarray:
    return decode(Reply.decode(message).blob, LAYOUT).dense().astype(np.float64)


def residual(store: MemoryStore) -> np.ndarray:
    left = store.states[0].compression.residual
    assert left is not None
    return left.astype(np.float64)


def total(*numbers: int) -> np.ndarray:
    return np.sum([updates(0)(number).astype(np.float64) for number in numbers], axis=0)


def test_counted_reply_is_let_go() -> None:
    store = MemoryStore()
    one = client(0, store)
    first = one.respond(broadcast(1))
    second = one.respond(broadcast(2, counted(store.states[0])))
    assert second.remarks == ()
    np.testing.assert_allclose(dense(first.message) + dense(second.message) + residual(store), total(1, 2), atol=1e-6)


def test_uncounted_reply_is_put_back() -> None:
    store = MemoryStore()
    one = client(0, store)
    one.respond(broadcast(1))
    second = one.respond(broadcast(4))
    assert second.remarks == ("reply to round 1 was not counted: put back into the residual",)
    np.testing.assert_allclose(dense(second.message) + residual(store), total(1, 4), atol=1e-6)


def test_server_that_does_not_tell_is_believed_to_count_all() -> None:
    store = MemoryStore()
    one = client(0, store)
    first = one.respond(replace(broadcast(1), acknowledged=None))
    second = one.respond(replace(broadcast(2), acknowledged=None))
    np.testing.assert_allclose(dense(first.message) + dense(second.message) + residual(store), total(1, 2), atol=1e-6)


def test_same_broadcast_again_gets_the_same_reply() -> None:
    store = MemoryStore()
    one = client(0, store)
    first = one.respond(broadcast(1))
    before = store.states[0]
    again = one.respond(broadcast(1))
    assert again.message == first.message
    assert again.remarks == ("broadcast came again: same reply sent again",)
    assert store.states[0] is before


def test_broadcast_out_of_date_is_ignored() -> None:
    store = MemoryStore()
    one = client(0, store)
    one.respond(broadcast(5))
    before = store.states[0]
    answer = one.respond(broadcast(4))
    assert answer.message is None
    assert "round 4 is out of date" in answer.remarks[0]
    assert store.states[0] is before


def test_damaged_broadcast_is_said_to_be() -> None:
    data = bytearray(broadcast(1).encode())
    data[40] ^= 1
    answer = client(0).answer(bytes(data))
    assert answer.message is None
    assert "could not be read" in answer.remarks[0]


def test_lost_state_is_reported() -> None:
    answer = client(0).respond(broadcast(3, Receipt(2, 77)))
    assert "residual lost" in answer.remarks[0]
    assert client(0).respond(broadcast(3)).remarks == ()


def test_older_copy_is_reported_and_not_sent_again() -> None:
    store = MemoryStore()
    one = client(0, store)
    one.respond(broadcast(1))
    old = store.states[0]
    one.respond(broadcast(2, counted(old)))
    newer = counted(store.states[0])
    store.states[0] = old
    answer = one.respond(broadcast(3, newer))
    assert "older copy" in answer.remarks[0]
    assert "residual dropped" in answer.remarks[0]
    np.testing.assert_allclose(dense(answer.message) + residual(store), total(3), atol=1e-6)


def test_another_reply_to_the_same_round_is_not_taken_for_its_own() -> None:
    """The client answered round 2, was put back, and answered round 2 once more from another training."""
    store = MemoryStore()
    client(0, store).respond(broadcast(1))
    old = store.states[0]
    first_told = counted(old)
    client(0, store).respond(broadcast(2, first_told))
    other = counted(store.states[0])
    store.states[0] = old
    client(0, store, seed=99).respond(broadcast(2, first_told))
    assert counted(store.states[0]) != other
    answer = client(0, store).respond(broadcast(3, other))
    assert "older copy" in answer.remarks[0]


def test_server_that_went_back_is_reported() -> None:
    store = MemoryStore()
    one = client(0, store)
    one.respond(broadcast(1))
    first = counted(store.states[0])
    one.respond(broadcast(2, first))
    one.respond(broadcast(3, counted(store.states[0])))
    answer = one.respond(broadcast(4, first))
    assert answer.remarks[0].startswith("the server went back from counted round 2 to 1")
    assert answer.remarks[0].endswith("put back into the residual")


@pytest.mark.parametrize("was_counted", [True, False])
def test_method_may_change_and_the_residual_stays(was_counted: bool) -> None:
    store = MemoryStore()
    one = client(0, store)
    first = one.respond(broadcast(1))
    told = counted(store.states[0]) if was_counted else Receipt()
    second = one.respond(broadcast(2, told, "stc", fraction=0.5))
    assert "residual kept" in second.remarks[0]
    sent = dense(second.message) + (dense(first.message) if was_counted else 0)
    np.testing.assert_allclose(sent + residual(store), total(1, 2), atol=1e-6)
    third = one.respond(broadcast(3, counted(store.states[0]), "fedavg"))
    assert "residual dropped" in third.remarks[0]
    np.testing.assert_allclose(dense(third.message), total(3), atol=1e-6)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_settling_for_every_method(name: str) -> None:
    store = MemoryStore()
    one = client(0, store)
    one.respond(broadcast(1, name=name))
    state = store.states[0]
    settled, remark = settle(state, broadcast(2, name=name), LAYOUT)
    assert settled.in_flight == b""
    assert "not counted" in remark
    if method(name).feedback == "full":
        assert settled.compression.residual is not None
        assert state.compression.residual is not None
        sent = dense(state.in_flight) + state.compression.residual
        np.testing.assert_allclose(settled.compression.residual, sent, atol=1e-5)
    settled, remark = settle(state, broadcast(2, counted(state), name=name), LAYOUT)
    assert remark == ""
    assert settled.compression is state.compression


def test_state_is_safe_before_the_reply_leaves() -> None:
    class FullDisk(MemoryStore):
        def save(self, client: int, state: ClientState) -> None:
            raise RunError("could not write: No space left on device")

    store = FullDisk()
    with pytest.raises(RunError):
        client(0, store).respond(broadcast(1))
    assert store.states == {}


def test_another_model_is_an_error() -> None:
    stranger = Client(0, Layout.of({"w": (12,)}), lambda *_: Trained(vector(1), 1), MemoryStore())
    with pytest.raises(WireError, match="both sides must build the same model"):
        stranger.respond(broadcast(1))


@pytest.mark.parametrize("name", [name for name in sorted(METHODS) if method(name).feedback == "full"])
def test_long_update_goes_in_parts(name: str) -> None:
    chosen = method(name)
    payload, state = chosen.compress(100 * updates(0)(1), chosen.init(LAYOUT), np.random.default_rng(0))
    if not payload.kept:
        pytest.skip("nothing of so small a model fits this method's budget")
    limit = norm(payload) / 10
    part, left, shortened = within(limit, payload, state, chosen)
    assert shortened
    assert 0.4 * limit < norm(part) <= limit
    assert state.residual is not None
    assert left.residual is not None
    np.testing.assert_allclose(part.dense() + left.residual, payload.dense() + state.residual, rtol=1e-5, atol=1e-3)
    assert within(11 * limit, payload, state, chosen) == (payload, state, False)
    assert within(float("inf"), payload, state, chosen)[2] is False


def test_client_that_was_long_unheard_is_heard_again() -> None:
    """Its replies of ten rounds are lost; under a norm limit it must not be shut out for ever."""
    made = server(FEDSPARQ, Rules(norm_limit="3x median"))
    clients = [Client(n, LAYOUT, lambda *_: Trained(vector(1), 1), MemoryStore()) for n in range(3)]
    heard = []
    for number in range(1, 25):
        made.open_round(range(3))
        for one in clients:
            answer = one.answer(made.broadcast(one.number))
            assert answer.message is not None
            if one.number != 0 or number > 10:
                made.receive(one.number, answer.message)
        if 0 in made.close_round().counted:
            heard.append(number)
    assert len(heard) >= 10
    unsent = clients[0].store.load(0, LAYOUT).state
    assert unsent is not None
    assert unsent.compression.residual is not None
    assert np.abs(unsent.compression.residual).max() < 10


def test_model_that_cannot_be_built_is_asked_for() -> None:
    changes = replace(broadcast(3), base=2, hold=True)
    answer = client(0).respond(changes)
    assert answer.message is not None
    assert decode_answer(answer.message) == FullWanted(3)
    assert answer.remarks == ("model not at hand: whole model asked for",)
    assert reply(vector(1)) != answer.message
