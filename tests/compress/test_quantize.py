"""Values: nearest is numpy's own float16; the stochastic ones are unbiased, down to the subnormals."""

import numpy as np
import pytest
from scipy import stats

import fedsparq
from fedsparq import Layout
from fedsparq.errors import OptionError
from fedsparq.payload import Float16Values, kernels

DRAWS = 2_000_000
LIMIT = 5.0  # standard deviations; the seeds are fixed, so this never fails by chance


def stochastic_halves(values, seed=0):
    """The float16 that stochastic rounding makes of these float32."""
    method = fedsparq.method("float16", rounding="stochastic")
    layout = Layout.of({"a": values.shape})
    payload, _ = method.compress(values, method.init(layout), np.random.default_rng(seed))
    (halves,) = payload.values
    assert isinstance(halves, Float16Values)
    return halves.bits.view(np.float16)


@pytest.mark.parametrize(
    "value",
    [
        1.0001, -1.0001, 0.1, -3.14159, 1234.567, 65503.0, 2047.5,
        6.1035e-5, 6.1e-5, -6.09e-5,  # around the smallest normal float16
        1e-6, -4.4e-7, 5.97e-8, 5.9e-8, 1e-8, -2e-9,  # subnormal, and below the smallest one
        1e-12, 1e-40,  # all but never rounded up
    ],
)  # fmt: skip
def test_stochastic_rounding_is_unbiased(value):
    exact = float(np.float32(value))
    drawn = stochastic_halves(np.full(DRAWS, value, np.float32))
    found = np.unique(drawn).astype(np.float64)
    nearest = np.float16(exact)
    low = nearest if float(nearest) <= exact else np.nextafter(nearest, np.float16(-np.inf))
    high = np.nextafter(low, np.float16(np.inf))
    assert set(found) <= {float(low), float(high)}
    p = (exact - float(low)) / (float(high) - float(low))
    ups = int((drawn == high).sum())
    assert abs(ups - DRAWS * p) <= LIMIT * np.sqrt(DRAWS * p * (1 - p)) + 1e-9 * DRAWS


def test_what_float16_can_hold_is_never_moved():
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every)]
    for seed in range(3):
        drawn = stochastic_halves(every.astype(np.float32), seed)
        np.testing.assert_array_equal(drawn.view(np.uint16), every.view(np.uint16))


def test_draws_of_neighbours_and_of_rounds_do_not_follow_each_other():
    values = np.full(DRAWS, 1 + 2.0**-11, np.float32)  # up or down with equal chance
    first = (stochastic_halves(values, 1) > 1).astype(np.float64) - 0.5
    second = (stochastic_halves(values, 2) > 1).astype(np.float64) - 0.5
    for lag in (1, 2, 64):
        assert abs((first[:-lag] * first[lag:]).sum() * 4) < LIMIT * np.sqrt(DRAWS)
    assert abs((first * second).sum() * 4) < LIMIT * np.sqrt(DRAWS)


@pytest.mark.parametrize("levels", [1, 4, 64, 32767])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-20, 3e-43, 1e30], ids=str)
def test_qsgd_is_unbiased(levels, scale):
    values = np.repeat(np.array([1.0, -0.5, 0.25, 4.0, 0.0]), DRAWS // 5) * scale
    update = values.astype(np.float32)
    layout = Layout.of({"a": update.shape})
    method = fedsparq.method("fedpaq", levels=levels)
    payload, _ = method.compress(update, method.init(layout), np.random.default_rng(9))
    (steps,) = payload.values
    norm = np.linalg.norm(update.astype(np.float64))
    assert norm / levels <= float(steps.step) <= max(norm / levels * (1 + 1e-6), norm / levels + 2.0**-149)
    signed = np.zeros(update.size)
    signed[payload.indices] = steps.levels
    for value in np.unique(update).astype(np.float64):
        drawn = signed[update == np.float32(value)]
        ratio = value / float(steps.step)
        assert ((drawn == np.floor(ratio)) | (drawn == np.ceil(ratio))).all()
        p = ratio - np.floor(ratio)
        ups = (drawn - np.floor(ratio)).sum()
        assert abs(ups - drawn.size * p) <= LIMIT * np.sqrt(drawn.size * p * (1 - p)) + 1e-9 * drawn.size


def test_qsgd_sends_the_norm_of_each_layer_once():
    layout = Layout.of({"a": (3,), "b": (2,)})
    method = fedsparq.method("fedpaq", levels=1)
    payload, _ = method.compress(np.array([3, 0, 4, 0, 7], np.float32), method.init(layout), np.random.default_rng(0))
    assert [v.step for v in payload.values] == [5, 7]
    assert payload.dense()[3:].tolist() == [0, 7]


@pytest.mark.parametrize("levels", [1, 2, 64])
def test_qsgd_stays_finite_at_the_end_of_float32(levels):
    layout = Layout.of({"a": (50,)})
    method = fedsparq.method("fedpaq", levels=levels)
    payload, _ = method.compress(np.full(50, 3.4e38, np.float32), method.init(layout), np.random.default_rng(0))
    received = fedsparq.decode(fedsparq.encode(payload), layout)
    assert np.isfinite(received.dense()).all()
    assert received.dense().tobytes() == payload.dense().tobytes()


@pytest.mark.parametrize("levels", [0, -3, 32768])
def test_impossible_levels_are_refused(levels):
    with pytest.raises(OptionError, match="levels"):
        fedsparq.method("fedpaq", levels=levels)


def test_uniform_draws_are_uniform():
    draws = np.array([kernels.uniform(np.uint64(77), i) for i in range(100_000)])
    assert draws.min() >= 0
    assert draws.max() < 1
    assert stats.kstest(draws, "uniform").pvalue > 1e-4
