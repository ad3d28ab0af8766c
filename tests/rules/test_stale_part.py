"""What is let go against a straight-line reference, and against a client of which it is known what it finds again."""

import numpy as np
import pytest

import fedsparq
from fedsparq import Client, Layout, MemoryStore, Model, OptionError, Payload, Server, Trained
from fedsparq.federate.rounds import Delivery, Traffic, play_round
from fedsparq.methods import resolver
from fedsparq.protocols import Heard
from fedsparq.rules import StalePart

LAYOUT = Layout.of({"a": (2, 3), "b": (4,)})
SPANS = slice(0, 6), slice(6, 10)


def heard(change, share=1.0):
    payload = Payload.sparse(LAYOUT, np.empty(0, np.int64), np.empty(0, np.float32))
    return Heard(payload, share, None if change is None else np.asarray(change, np.float32))


def drawn(rng):
    return rng.standard_normal(LAYOUT.size).astype(np.float32)


def test_the_share_is_how_updates_answer_to_the_models_change():
    rng = np.random.default_rng(0)
    rule = StalePart()
    state, last = rule.init(LAYOUT), None
    for _ in range(5):
        update, change, residual = drawn(rng), drawn(rng), drawn(rng)
        if last is not None:
            state = rule.heard(heard(change), state)
        same, state = rule.end(update, state)
        assert same is update
        expected = residual.astype(np.float64)
        for span in SPANS if last is not None else ():
            answer = -np.sum((update - last)[span] * change[span]) / np.sum(change[span] ** 2)
            expected[span] *= 1 - np.clip(answer, 0, 1)
        np.testing.assert_allclose(rule.owed(residual, state), expected, rtol=1e-5, atol=1e-6)
        last = update


@pytest.mark.parametrize("pull", [0.0, 0.3, 1.0])
def test_of_a_client_that_goes_a_share_of_the_way_as_much_is_let_go(pull):
    """update = pull (goal - model): whatever the model does, the share is the pull."""
    rng = np.random.default_rng(1)
    rule, goal, model = StalePart(), drawn(rng), drawn(rng)
    _, state = rule.end(np.float32(pull) * (goal - model), rule.init(LAYOUT))
    change = drawn(rng)
    _, state = rule.end(np.float32(pull) * (goal - model - change), rule.heard(heard(change), state))
    residual = drawn(rng)
    np.testing.assert_allclose(rule.owed(residual, state), (1 - pull) * residual, rtol=1e-4, atol=1e-5)


def test_nothing_is_let_go_where_the_change_is_not_known_or_there_is_none():
    rng = np.random.default_rng(2)
    rule, residual = StalePart(), drawn(rng)
    _, state = rule.end(drawn(rng), rule.init(LAYOUT))
    np.testing.assert_array_equal(rule.owed(residual, state), residual)
    for change in (None, np.zeros(LAYOUT.size)):
        _, after = rule.end(drawn(rng), rule.heard(heard(change), state))
        np.testing.assert_array_equal(rule.owed(residual, after), residual)


def test_an_update_whose_memory_is_used_again_changes_nothing():
    rule, buffer = StalePart(), np.ones(LAYOUT.size, np.float32)
    _, state = rule.end(buffer, rule.init(LAYOUT))
    buffer[:] = 7
    np.testing.assert_array_equal(state["vector"], 1)


def test_a_client_of_the_method_owes_what_waits_less_what_it_found_again():
    """All clients alike, and the model followed by hand: residual = (1 - share) residual + update - drawn part."""
    layout, goal, pull = Layout.of({"w": (4000,)}), np.random.default_rng(3).laplace(size=4000).astype(np.float32), 0.4
    method = fedsparq.method("fedsparq-adaptive", bits=0.1, stale="let-go")
    server, store = Server(layout, method, Model(np.zeros(4000, np.float32))), MemoryStore()
    updates = []

    def train(model, hook, number):
        updates.append(np.float32(pull) * (goal - model.vector))
        return Trained(updates[-1], 1)

    client, waited = Client(0, layout, train, store, resolver()), np.zeros(4000, np.float32)
    for number in range(1, 6):
        play_round(server, [0], lambda asked: [Delivery(0, client.answer(server.broadcast(0)))], Traffic())
        own = store.states[0].compression
        share = float(own.rules[0]["share"][0])
        assert share == pytest.approx(0 if number == 1 else pull, abs=1e-3)
        candidate = np.float32(1 - share) * waited + updates[-1]
        waits = own.residual != 0
        np.testing.assert_allclose(own.residual[waits], candidate[waits], rtol=1e-4, atol=1e-6)
        assert 0 < waits.sum() < 4000
        assert np.abs(candidate[waits]).max() <= np.abs(candidate[~waits]).min() + 1e-6
        waited = own.residual


def test_it_is_for_unbiased_messages():
    assert not fedsparq.method("fedsparq-adaptive").rules
    with pytest.raises(OptionError, match="stale='let-go' is for rounding='stochastic'"):
        fedsparq.method("fedsparq-adaptive", rounding="nearest", stale="let-go")
