"""Nothing is lost: what was not sent stays in the residual, whatever the update and however many the rounds."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsparq
from fedsparq import Layout
from made_updates import fill, fills, layouts

ALL = {name: fedsparq.method(name) for name in fedsparq.METHODS}
WITH_FEEDBACK = [name for name, method in ALL.items() if method.feedback == "full" and method.correction is None]


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


def test_a_state_is_never_changed_in_place_and_recycling_changes_no_result():
    layout = Layout.of({"a": (300,), "b": (40,)})
    method, rng = fedsparq.method("fedsparq"), np.random.default_rng(1)
    deltas = [rng.laplace(size=layout.size).astype(np.float32) for _ in range(6)]
    plain, recycled, spare = method.init(layout), method.init(layout), None
    for r, delta in enumerate(deltas):
        before, untouched = plain.residual.copy(), delta.copy()
        first, following = method.compress(delta, plain, np.random.default_rng(r))
        assert np.array_equal(plain.residual, before)
        assert np.array_equal(delta, untouched)
        second, next_recycled = method.compress(delta, recycled, np.random.default_rng(r), recycle=spare)
        assert first.dense().tobytes() == second.dense().tobytes()
        assert following.residual.tobytes() == next_recycled.residual.tobytes()
        plain, recycled, spare = following, next_recycled, recycled
