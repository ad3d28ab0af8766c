"""Nothing is lost: what was not sent stays in the residual, whatever the update and however many the rounds."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsparq
from fedsparq import Layout, Method, Payload
from fedsparq.compress.feedback import ErrorFeedback
from fedsparq.errors import OptionError, UpdateError
from fedsparq.payload import Float32Values, Sparse
from fedsparq.protocols import CompressorTraits, RoundContext, traits_of
from made_updates import fill, fills, layouts

ALL = {name: fedsparq.method(name) for name in fedsparq.METHODS}
WITH_FEEDBACK = [name for name, method in ALL.items() if method.feedback == ErrorFeedback()]


def test_fedsparq_keeps_what_it_does_not_send():
    assert "fedsparq" in WITH_FEEDBACK


@pytest.mark.parametrize("name", WITH_FEEDBACK)
@given(layout=layouts(), kinds=fills(), seed=st.integers(0, 2**32), rounds=st.integers(1, 30))
@settings(max_examples=40)
def test_deltas_are_payloads_plus_residual(name, layout, kinds, seed, rounds):
    method = fedsparq.method(name)
    state = method.init(layout)
    deltas, payloads = np.zeros(layout.size), np.zeros(layout.size)
    largest = np.zeros(layout.size)
    for r in range(rounds):
        delta = fill(layout, kinds, seed + r)
        deltas += delta
        largest = np.maximum(largest, np.abs(state.residual.astype(np.float64) + delta))
        payload, state = method.compress(delta, state, np.random.default_rng([seed, r]))
        payloads += payload.dense()
        largest = np.maximum(largest, np.abs(payload.dense()))
    # Each round rounds twice at most: update + residual, and what is left of it
    allowed = 2 * rounds * (largest * 2.0**-24 + 2.0**-149)
    assert (np.abs(deltas - (payloads + state.residual)) <= allowed).all()


@pytest.mark.parametrize("options", [{}, {"scope": "global"}, {"start": "zero"}, {"rounding": "stochastic"}])
def test_exactly_so_where_float32_can_add_exactly(options):
    layout = Layout.of({"a": (700,), "b": (30, 10)})
    method = fedsparq.method("fedsparq", **options)
    state, rng = method.init(layout), np.random.default_rng(3)
    deltas, payloads = np.zeros(layout.size), np.zeros(layout.size)
    for _ in range(200):
        delta = (rng.integers(-1000, 1001, layout.size) * 2.0**-18).astype(np.float32)
        payload, state = method.compress(delta, state, rng)
        deltas += delta
        payloads += payload.dense()
    assert np.array_equal(deltas, payloads + state.residual)


def test_the_residual_does_not_grow_with_the_rounds():
    layout = Layout.of({"a": (5000,)})
    method, rng = fedsparq.method("fedsparq"), np.random.default_rng(0)
    state, norms = method.init(layout), []
    for _ in range(120):
        _, state = method.compress(rng.laplace(size=layout.size).astype(np.float32), state, rng)
        norms.append(float(np.linalg.norm(state.residual)))
    assert max(norms[60:]) < 1.2 * max(norms[20:60])


@pytest.mark.parametrize(
    ("value", "rounding"), list(product([65504.0, 65519.0, 65520.0, 1e5, 3e38, -7e4], ["nearest", "stochastic"]))
)
def test_what_float16_cannot_hold_stays_in_the_residual(value, rounding):
    layout = Layout.of({"a": (1,)})
    method = fedsparq.method("fedsparq", rounding=rounding)
    delta = np.array([value], np.float32)
    payload, state = method.compress(delta, method.init(layout), np.random.default_rng(0))
    sent = np.float32(np.copysign(65504, value))
    assert payload.dense()[0] == sent
    assert state.residual[0] == delta[0] - sent


def test_kept_only_forgets_what_was_dropped_and_off_forgets_all():
    layout = Layout.of({"a": (4,)})
    delta = np.array([1.0, -1.0, 10.0001, 0.5], np.float32)
    rounding_error = delta[2] - np.float32(np.float16(delta[2]))
    expected = {"full": [1, -1, rounding_error, 0.5], "kept-only": [0, 0, rounding_error, 0]}
    for rule, residual in expected.items():
        method = fedsparq.method("fedsparq", residual=rule)
        _, state = method.compress(delta, method.init(layout), np.random.default_rng(0))
        assert state.residual.tolist() == [np.float32(r) for r in residual]
    method = fedsparq.method("fedsparq", residual="off")
    _, state = method.compress(delta, method.init(layout), np.random.default_rng(0))
    assert state.residual is None


def test_a_state_is_never_changed_in_place():
    layout = Layout.of({"a": (300,), "b": (40,)})
    method, rng = fedsparq.method("fedsparq"), np.random.default_rng(1)
    deltas = [rng.laplace(size=layout.size).astype(np.float32) for _ in range(6)]
    plain = method.init(layout)
    for r, delta in enumerate(deltas):
        before, untouched = plain.residual.copy(), delta.copy()
        _, following = method.compress(delta, plain, np.random.default_rng(r))
        assert np.array_equal(plain.residual, before)
        assert np.array_equal(delta, untouched)
        plain = following


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_what_did_not_count_is_owed_again(share):
    layout = Layout.of({"a": (300,)})
    method, rng = fedsparq.method("fedsparq"), np.random.default_rng(2)
    payload, state = method.compress(rng.laplace(size=300).astype(np.float32), method.init(layout), rng)
    before = state.residual.copy()
    after = method.acknowledge(state, payload, share)
    np.testing.assert_array_equal(after.residual, before + np.float32(1 - share) * payload.dense())
    np.testing.assert_array_equal(state.residual, before)
    assert (after.residual is state.residual) == (share == 1)


@pytest.mark.parametrize(
    ("name", "options"), [("fedsparq", {"residual": "kept-only"}), ("fedsparq-adaptive", {}), ("top-10", {})]
)
def test_what_is_not_conserved_is_not_put_back(name, options):
    layout = Layout.of({"a": (300,)})
    method, rng = fedsparq.method(name, **options), np.random.default_rng(2)
    payload, state = method.compress(rng.laplace(size=300).astype(np.float32), method.init(layout), rng)
    assert not method.traits.conserves_mass
    assert method.acknowledge(state, payload, 0.0).feedback is state.feedback


class EveryTenth:
    """A compressor as a user writes one."""

    def init(self, layout):
        return {"turn": np.zeros(1)}

    def compress(self, update, layout, state, rng):
        assert not update.flags.writeable
        indices = np.arange(int(state["turn"][0]) % 10, layout.size, 10)
        return Payload.sparse(layout, indices, update[indices]), {"turn": state["turn"] + 1}


class Aliased:
    """Sends a view of what it was given."""

    def init(self, layout):
        return {}

    def compress(self, update, layout, state, rng):
        return Payload.full(layout, update), state


@pytest.mark.parametrize("feedback", ["full", "kept-only", "deferred", "off"])
def test_a_compressor_of_a_users(feedback):
    layout = Layout.of({"a": (95,), "b": (12,)})
    method = Method(EveryTenth(), feedback=feedback)
    state, residual, rng = method.init(layout), np.zeros(107, np.float32), np.random.default_rng(4)
    for r in range(12):
        update = rng.normal(size=107).astype(np.float32)
        before = state
        payload, state = method.compress(update, state, rng)
        c, sent = update + residual, np.arange(107) % 10 == r % 10
        np.testing.assert_array_equal(payload.dense(), np.where(sent, c, 0))
        assert before.compressor["turn"] == [r]
        if feedback in ("full", "deferred"):
            residual = np.where(sent, np.float32(0), c)
        if feedback != "off":
            np.testing.assert_array_equal(state.residual, residual)
    assert (state.residual is None) == (feedback == "off")


def test_a_payload_may_hold_what_the_compressor_was_given():
    layout = Layout.of({"a": (5,)})
    method = Method(Aliased(), feedback="full")
    update = np.arange(5, dtype=np.float32)
    payload, state = method.compress(update, method.init(layout), np.random.default_rng(0))
    assert payload.dense().tolist() == [0, 1, 2, 3, 4]
    assert not state.residual.any()
    after, _ = method.compress(update, state, np.random.default_rng(0))
    assert payload.dense().tolist() == after.dense().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "compressor Wrong must return a payload and its next state"),
        ((None, {}), r"compressor Wrong must return a fedsparq\.Payload .*; got NoneType"),
        ((Payload.full(Layout.of({"b": (5,)}), np.zeros(5, np.float32)), {}), "Wrong .* got one of another layout"),
        (
            (Payload.full(Layout.of({"a": (5,)}), np.zeros(5, np.float32)), None),
            "Wrong must return .* a dict of arrays",
        ),
    ],
)
def test_a_compressor_that_returns_something_else_is_named(result, message):
    class Wrong(Aliased):
        def compress(self, update, layout, state, rng):
            return result

    layout = Layout.of({"a": (5,)})
    method = Method(Wrong(), feedback="full")
    with pytest.raises(OptionError, match=message):
        method.compress(np.zeros(5, np.float32), method.init(layout), np.random.default_rng(0))


def test_a_users_compressor_may_not_send_what_lies_outside_of_the_model():
    class Beyond(Aliased):
        def compress(self, update, layout, state, rng):
            selection = Sparse(np.array([0, 1_000_000], np.uint32))
            return Payload(layout, selection, (Float32Values(np.ones(2, np.float32)),)), state

    method = Method(Beyond(), feedback="full")
    layout = Layout.of({"a": (5,)})
    with pytest.raises(UpdateError, match="index 1000000 is out of range; this layout has 5 coordinates"):
        method.compress(np.zeros(5, np.float32), method.init(layout), np.random.default_rng(0))


def test_a_users_compressor_never_sees_what_is_not_finite():
    layout = Layout.of({"first": (10,), "second.weight": (30, 3)})
    update = np.ones(layout.size, np.float32)
    update[10 + 17] = np.nan
    method = Method(EveryTenth(), feedback="off")
    with pytest.raises(UpdateError, match=r"'second\.weight'.* 17 of 90"):
        method.compress(update, method.init(layout), np.random.default_rng(0))


def test_full_feedback_conserves_even_with_a_compressor_that_leaves_something_else():
    layout = Layout.of({"a": (2000,)})
    unbiased = fedsparq.method("fedsparq-adaptive").compressor
    method, rng = Method(unbiased, feedback="full"), np.random.default_rng(5)
    update = rng.laplace(size=2000).astype(np.float32)
    payload, state = method.compress(update, method.init(layout), rng)
    np.testing.assert_array_equal(state.residual, update - payload.dense())


@pytest.mark.parametrize("name", list(fedsparq.METHODS))
def test_a_compressor_alone_leaves_update_and_state_as_they_are(name):
    layout = Layout.of({"a": (20, 30), "b": (40,)})
    compressor, rng = fedsparq.method(name).compressor, np.random.default_rng(6)
    first = fedsparq.method(name).init(layout)
    state, context = first.compressor, ()
    update = rng.laplace(size=layout.size).astype(np.float32)
    if traits_of(compressor, CompressorTraits).wants_context:
        sums = np.array([np.abs(update[tensor.span]).sum() for tensor in layout.parameters])
        context = (RoundContext(update, sums, first.plan),)
    kept, frozen = {key: array.copy() for key, array in state.items()}, update.copy()
    frozen.flags.writeable = False
    payload, after, _ = compressor.compress(frozen, layout, state, np.random.default_rng(0), *context)
    again, _, _ = compressor.compress(update, layout, state, np.random.default_rng(0), *context)
    assert payload.dense().tobytes() == again.dense().tobytes()
    assert {key: array.tolist() for key, array in state.items()} == {key: a.tolist() for key, a in kept.items()}
    assert after.keys() == state.keys()
