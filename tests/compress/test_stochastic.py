"""The adaptive method as clients use it: each message is unbiased; what is too small waits."""

import numpy as np
import pytest

import fedsparq
from fedsparq import Layout
from fedsparq.compress.adaptive import Curves, measure
from fedsparq.compress.adaptive_kernels import drawn_bits

LAYOUT = Layout.of({"a": (100, 80), "b": (60, 50), "c": (300,)})
C = np.concatenate(
    [s * np.random.default_rng(0).laplace(size=t.size) for s, t in zip((1.0, 0.2, 5.0), LAYOUT.parameters, strict=True)]
).astype(np.float32)


def sent(seed, **options):
    method = fedsparq.method("fedsparq-adaptive", **options)
    payload, state = method.compress(C, method.init(LAYOUT), np.random.default_rng(seed))
    return payload, state


def steps_of(payload):
    """Each coordinate's step."""
    return np.concatenate([np.full(t.size, v.step) for t, v in zip(LAYOUT.parameters, payload.values, strict=True)])


def test_every_value_is_one_of_the_two_steps_beside_it():
    payload, _ = sent(0, bits=1.0)
    step = steps_of(payload)
    assert not (step.view(np.uint32) & 0xFFFF).any()
    dense = payload.dense()
    levels = dense / step
    np.testing.assert_array_equal(levels, np.rint(levels))
    assert (np.abs(levels - C / step) < 1 + 1e-6).all()
    assert ((levels == 0) | (np.sign(levels) == np.sign(C))).all()


def test_what_is_drawn_is_unbiased_and_what_is_not_is_kept():
    draws, residuals = [], []
    for seed in range(400):
        payload, state = sent(seed, bits=0.6)
        draws.append(payload.dense().astype(np.float64))
        residuals.append(state.residual)
    mean, kept = np.mean(draws, 0), np.mean(residuals, 0)
    spread = np.std(draws, 0) / np.sqrt(len(draws))
    error = mean + kept - C
    assert np.sqrt(np.mean(error**2)) < 1.15 * np.sqrt(np.mean(spread**2))
    assert np.abs(error.sum()) < 4 * np.sqrt(np.sum(spread**2))


def test_only_what_is_below_the_deferred_share_of_a_step_is_kept():
    payload, state = sent(1, bits=0.6, deferred=0.25)
    least = np.float32(0.25) * steps_of(payload)
    np.testing.assert_array_equal(state.residual, np.where(np.abs(C) < least, C, 0))
    assert not np.isin(np.flatnonzero(state.residual), payload.indices).any()


def test_steps_are_finer_by_the_root_of_the_mean_magnitude():
    payload, _ = sent(1)
    means = np.array([np.abs(C[tensor.span]).mean() for tensor in LAYOUT.parameters])
    steps = np.array([values.step for values in payload.values], np.float64)
    np.testing.assert_allclose(steps * np.sqrt(means / means[0]), steps[0], rtol=2**-6)


def test_a_layer_of_zeros_sends_nothing_and_disturbs_no_other():
    layout = Layout.of({"a": (100, 80), "silent": (500,)})
    update = np.concatenate([C[:8000], np.zeros(500, np.float32)])
    method = fedsparq.method("fedsparq-adaptive", bits=0.5)
    payload, state = method.compress(update, method.init(layout), np.random.default_rng(0))
    assert (payload.indices < 8000).all()
    assert payload.indices.size > 100
    assert not state.residual[8000:].any()


def test_nothing_is_kept_if_nothing_is_deferred():
    _, state = sent(1, deferred=0.0)
    assert not state.residual.any()


def test_what_waits_is_sent_in_the_end():
    layout = Layout.of({"w": (4000,)})
    method, rng = fedsparq.method("fedsparq-adaptive"), np.random.default_rng(3)
    drift = np.float32(1e-3) * np.sign(rng.normal(size=layout.size)).astype(np.float32)
    state, total, rounds = method.init(layout), np.zeros(layout.size), 300
    for _ in range(rounds):
        noise = np.where(rng.random(layout.size) < 0.05, rng.normal(size=layout.size), 0).astype(np.float32)
        payload, state = method.compress(drift + noise, state, rng)
        total += payload.dense() - noise
    along = float(np.sum((total + state.residual) * drift) / np.sum(drift.astype(np.float64) ** 2)) / rounds
    assert along == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize("step", [0.01, 0.3, 3.0, 30.0])
@pytest.mark.parametrize("deferred", [0.0, 0.2])
def test_the_bits_to_expect_are_the_entropy_of_what_is_drawn(step, deferred):
    curves, steps = Curves(measure(C, LAYOUT)), np.full(len(LAYOUT.parameters), step)
    expected = drawn_bits(curves.curves, curves.bases, curves.sizes, steps, deferred)
    rng, bits = np.random.default_rng(0), []
    for _ in range(30):
        ratio = np.abs(C.astype(np.float64)) / step
        levels = np.where(ratio < deferred, 0, np.floor(ratio + rng.random(C.size)))
        total = 0.0
        for tensor in LAYOUT.parameters:
            counts = np.bincount(levels[tensor.span].astype(int))
            shares = counts[counts > 0] / tensor.size
            total += 32 - tensor.size * (shares * np.log2(shares)).sum() + counts[1:].sum()
        bits.append(total)
    assert expected == pytest.approx(np.mean(bits), rel=0.04)


def test_the_same_seed_draws_the_same():
    first, second, other = sent(5)[0], sent(5)[0], sent(6)[0]
    assert fedsparq.encode(first) == fedsparq.encode(second) != fedsparq.encode(other)


def test_a_peak_that_the_sample_missed_is_sent_as_it_is():
    layout = Layout.of({"big": (300_000,)})
    update = np.resize(C, layout.size)
    update[64 * 5 + 3] = -40_000 * np.abs(C).max()
    method = fedsparq.method("fedsparq-adaptive", budget="2 MB")
    payload, _ = method.compress(update, method.init(layout), np.random.default_rng(0))
    step = payload.values[0].step
    assert np.abs(payload.dense() - update).max() <= 1.001 * step
    assert step <= 1.02 * np.abs(update).max() / 32_000


def test_a_layer_of_large_values_does_not_keep_the_others_from_using_a_large_budget():
    layout = Layout.of({"a": (100, 80), "large": (6,)})
    update = np.concatenate([C[:8000], 20_000 * C[:6]])
    method = fedsparq.method("fedsparq-adaptive", budget="11 kB")
    payload, _ = method.compress(update, method.init(layout), np.random.default_rng(0))
    assert 0.95 <= len(fedsparq.encode(payload)) / 11_000 <= 1.0
