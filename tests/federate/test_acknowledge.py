"""What a client makes of the word on its last reply: all of it counted, a part, or nothing."""

from dataclasses import replace

import numpy as np
import pytest
from small_federation import (
    FEDSPARQ,
    LAYOUT,
    broadcast,
    client,
    counted,
    dense,
    residual,
    total,
    updates,
)

from fedsparq.compress.feedback import ErrorFeedback
from fedsparq.federate.acknowledge import acknowledge
from fedsparq.federate.client import Client, Trained
from fedsparq.federate.messages import Acknowledgement
from fedsparq.federate.store import MemoryStore
from fedsparq.layout import Arrays, Layout
from fedsparq.method import Identity, Method
from fedsparq.methods import METHODS, method, resolver


def test_counted_reply_is_let_go() -> None:
    store = MemoryStore()
    one = client(0, store)
    first = one.answer(broadcast(1).encode())
    second = one.answer(broadcast(2, counted(store.states[0])).encode())
    assert second.remarks == ()
    np.testing.assert_allclose(dense(first.message) + dense(second.message) + residual(store), total(1, 2), atol=1e-6)


def test_uncounted_reply_is_put_back() -> None:
    store = MemoryStore()
    one = client(0, store)
    one.answer(broadcast(1).encode())
    second = one.answer(broadcast(4).encode())
    assert second.remarks == ("reply to round 1 was not counted: put back into the residual",)
    np.testing.assert_allclose(dense(second.message) + residual(store), total(1, 4), atol=1e-6)


def test_server_that_does_not_tell_is_believed_to_count_all() -> None:
    store = MemoryStore()
    one = client(0, store)
    first = one.answer(replace(broadcast(1), acknowledged=None).encode())
    second = one.answer(replace(broadcast(2), acknowledged=None).encode())
    np.testing.assert_allclose(dense(first.message) + dense(second.message) + residual(store), total(1, 2), atol=1e-6)


def test_lost_state_is_reported() -> None:
    answer = client(0).answer(broadcast(3, Acknowledgement(2, 77)).encode())
    assert "residual lost" in answer.remarks[0]
    assert client(0).answer(broadcast(3).encode()).remarks == ()


def test_older_copy_is_reported_and_not_sent_again() -> None:
    store = MemoryStore()
    one = client(0, store)
    one.answer(broadcast(1).encode())
    old = store.states[0]
    one.answer(broadcast(2, counted(old)).encode())
    newer = counted(store.states[0])
    store.states[0] = old
    answer = one.answer(broadcast(3, newer).encode())
    assert "older copy" in answer.remarks[0]
    assert "residual dropped" in answer.remarks[0]
    np.testing.assert_allclose(dense(answer.message) + residual(store), total(3), atol=1e-6)


def test_another_reply_to_the_same_round_is_not_taken_for_its_own() -> None:
    """The client answered round 2, was put back, and answered round 2 once more from another training."""
    store = MemoryStore()
    client(0, store).answer(broadcast(1).encode())
    old = store.states[0]
    first_counted = counted(old)
    client(0, store).answer(broadcast(2, first_counted).encode())
    other = counted(store.states[0])
    store.states[0] = old
    client(0, store, seed=99).answer(broadcast(2, first_counted).encode())
    assert counted(store.states[0]) != other
    answer = client(0, store).answer(broadcast(3, other).encode())
    assert "older copy" in answer.remarks[0]


def test_server_that_went_back_is_reported() -> None:
    store = MemoryStore()
    one = client(0, store)
    one.answer(broadcast(1).encode())
    first = counted(store.states[0])
    one.answer(broadcast(2, first).encode())
    one.answer(broadcast(3, counted(store.states[0])).encode())
    answer = one.answer(broadcast(4, first).encode())
    assert answer.remarks[0].startswith("the server went back from counted round 2 to 1")
    assert answer.remarks[0].endswith("put back into the residual")


@pytest.mark.parametrize("was_counted", [True, False])
def test_method_may_change_and_the_residual_stays(was_counted: bool) -> None:
    store = MemoryStore()
    one = client(0, store)
    first = one.answer(broadcast(1).encode())
    last = counted(store.states[0]) if was_counted else Acknowledgement()
    second = one.answer(broadcast(2, last, "stc", fraction=0.5).encode())
    assert "residual kept" in second.remarks[0]
    sent = dense(second.message) + (dense(first.message) if was_counted else 0)
    np.testing.assert_allclose(sent + residual(store), total(1, 2), atol=1e-6)
    third = one.answer(broadcast(3, counted(store.states[0]), "fedavg").encode())
    assert "residual dropped" in third.remarks[0]
    np.testing.assert_allclose(dense(third.message), total(3), atol=1e-6)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_acknowledging_for_every_method(name: str) -> None:
    store = MemoryStore()
    one = client(0, store)
    one.answer(broadcast(1, name=name).encode())
    state = store.states[0]
    after, remark = acknowledge(state, broadcast(2, name=name), method(name), LAYOUT, resolver())
    assert after.in_flight == b""
    assert "not counted" in remark
    if method(name).traits.conserves_mass:
        assert after.compression.residual is not None
        assert state.compression.residual is not None
        sent = dense(state.in_flight) + state.compression.residual
        np.testing.assert_allclose(after.compression.residual, sent, atol=1e-5)
    after, remark = acknowledge(state, broadcast(2, counted(state), name=name), method(name), LAYOUT, resolver())
    assert remark == ""
    if not method(name).traits.needs_acks:
        assert after.compression is state.compression


@pytest.mark.parametrize("share", [0.25, 1 / 3, 1e-9])
def test_what_did_not_count_of_a_reply_is_put_back(share: float) -> None:
    store = MemoryStore()
    one = client(0, store)
    first = one.answer(broadcast(1).encode())
    second = one.answer(broadcast(2, counted(store.states[0], share)).encode())
    assert second.remarks == (f"reply to round 1 was not counted beyond {share:.3g} of it: put back into the residual",)
    sent = share * dense(first.message) + dense(second.message)
    np.testing.assert_allclose(sent + residual(store), total(1, 2), atol=1e-6)
    third = one.answer(broadcast(3, store.states[0].acknowledged).encode())
    assert third.remarks == ("reply to round 2 was not counted: put back into the residual",)
    sent = share * dense(first.message) + dense(third.message)
    np.testing.assert_allclose(sent + residual(store), total(1, 2, 3), atol=1e-6)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_share_for_every_method(name: str) -> None:
    store = MemoryStore()
    client(0, store).answer(broadcast(1, name=name).encode())
    state = store.states[0]
    last = counted(state, 0.25)
    after, remark = acknowledge(state, broadcast(2, last, name=name), method(name), LAYOUT, resolver())
    assert (after.in_flight, after.acknowledged) == (b"", last)
    assert "not counted beyond 0.25" in remark
    if method(name).traits.conserves_mass:
        assert after.compression.residual is not None
        assert state.compression.residual is not None
        expected = 0.75 * dense(state.in_flight) + state.compression.residual
        np.testing.assert_allclose(after.compression.residual, expected, atol=1e-5)
    elif not method(name).traits.needs_acks:
        assert after.compression is state.compression


def test_server_that_went_back_and_counted_another_share_keeps_the_residual() -> None:
    """The client went by the first share: what differs is lost or counts twice, but not all it ever owed."""
    store = MemoryStore()
    one = client(0, store)
    one.answer(broadcast(1).encode())
    first = counted(store.states[0], 0.5)
    one.answer(broadcast(2, first).encode())
    answer = one.answer(broadcast(3, replace(first, share=0.25)).encode())
    assert "went back from counted round 1 to 1" in answer.remarks[0]
    assert "put back into the residual" in answer.remarks[0]
    assert "dropped" not in answer.remarks[0]
    assert store.states[0].acknowledged.share == 0.25


def test_reply_of_a_method_that_is_gone_is_said_to_be_lost() -> None:
    store = MemoryStore()
    client(0, store).answer(broadcast(1).encode())
    store.states[0] = replace(store.states[0], method=Identity("gone", "1"))
    answer = client(0, store).answer(broadcast(2).encode())
    assert "its method 'gone' is not known here any more: it is lost" in answer.remarks[0]
    assert "method changed: 'fedsparq' instead of 'gone': residual kept" in answer.remarks[0]


@pytest.mark.parametrize("name", ["gone", "stc"])
def test_a_residual_of_another_shape_is_not_taken_over_from_another_method(name: str) -> None:
    store = MemoryStore()
    client(0, store).answer(broadcast(1).encode())
    state = store.states[0]
    assert state.compression.residual is not None
    feedback = state.compression.feedback | {"residual": np.atleast_2d(state.compression.residual)}
    odd = replace(state.compression, feedback=feedback)
    store.states[0] = replace(
        state, method=method(name).identity if name == "stc" else Identity(name, "1"), compression=odd
    )
    answer = client(0, store).answer(broadcast(2).encode())
    assert answer.message is not None
    assert "left aside" in answer.remarks[0] or "residual dropped" in answer.remarks[0]


class Elsewhere(ErrorFeedback):
    """Feedback that owes nothing under the name `residual`."""

    def init(self, layout: Layout) -> Arrays:
        return {"debt": np.zeros(layout.size, np.float32)}

    def compress(self, update, state, compressor, rng):  # type: ignore[no-untyped-def]
        payload, after = super().compress(update, replace(state, feedback={}), compressor, rng)
        return payload, replace(after, feedback={"debt": after.residual})


def test_residual_is_not_given_to_feedback_that_has_no_place_for_it() -> None:
    store, other = MemoryStore(), Method(FEDSPARQ.compressor, feedback=Elsewhere())
    client(0, store).answer(broadcast(1).encode())
    one = Client(0, LAYOUT, lambda *_: Trained(updates(0)(2), 1), store, lambda identity: other)
    answer = one.answer(replace(broadcast(2, counted(store.states[0])), method=Identity("other")).encode())
    assert "residual dropped" in answer.remarks[0]
    assert set(store.states[0].compression.feedback) == {"debt"}


def test_acknowledgement_replayed_in_the_place_of_a_newer_one_counts_nothing_twice() -> None:
    """Reply 2 counted, but somebody on the way puts the word on reply 1 into broadcast 3. Reply 2 is owed again;
    when the truth arrives with broadcast 4, what it would send twice is dropped."""
    store = MemoryStore()
    one = client(0, store)
    one.answer(broadcast(1).encode())
    first = counted(store.states[0])
    one.answer(broadcast(2, first).encode())
    second = counted(store.states[0])
    third = one.answer(broadcast(3, first).encode())
    assert third.remarks == ("reply to round 2 was not counted: put back into the residual",)
    fourth = one.answer(broadcast(4, second).encode())
    assert "residual dropped" in fourth.remarks[0]
    np.testing.assert_allclose(dense(fourth.message) + residual(store), total(4), atol=1e-6)


def test_same_acknowledgement_again_and_again_settles_one_reply() -> None:
    store = MemoryStore()
    one = client(0, store)
    first = one.answer(broadcast(1).encode())
    word = counted(store.states[0])
    for number in range(2, 6):
        last = one.answer(broadcast(number, word).encode())
    np.testing.assert_allclose(
        dense(first.message) + dense(last.message) + residual(store), total(*range(1, 6)), atol=1e-5
    )


def test_broadcasts_replayed_byte_for_byte_change_nothing() -> None:
    store = MemoryStore()
    one, sent = client(0, store), []
    for number in (1, 2, 3):
        word = counted(store.states[0]) if store.states else Acknowledgement()
        sent.append(broadcast(number, word).encode())
        last = one.answer(sent[-1])
    after = store.states[0]
    assert [one.answer(message).message for message in sent] == [None, None, last.message]
    assert store.states[0] is after
