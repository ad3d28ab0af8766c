"""Each loop against numpy or plain Python."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsparq.compress import kernels

SIZES = [0, 1, 2, 63, 64, 65, 127, 128, 129, 1000]


@pytest.mark.parametrize("size", [*SIZES, 10_000])
@pytest.mark.parametrize("threshold", [0.0, 1e-45, 0.7, 3.0, np.inf])
def test_list_at_least(size, threshold):
    c = np.random.default_rng(size).normal(size=size).astype(np.float32)
    c[::7] = -0.0
    c[3::11] = np.float32(0.7)
    bounds, limits = np.array([0, size // 3, size // 3, size]), np.array([0.7, 1.0, threshold], np.float32)
    expected = np.flatnonzero(np.abs(c) >= np.repeat(limits, np.diff(bounds)))
    indices = np.empty(expected.size + kernels.STRIDE, np.uint32)
    assert kernels.count_at_least(c, bounds, limits) == expected.size
    assert kernels.list_at_least(c, bounds, limits, indices) == expected.size
    np.testing.assert_array_equal(indices[: expected.size], expected)


def add(update, residual, bounds=None):
    bounds = np.array([0, update.size] if bounds is None else bounds)
    c, sums = np.full(update.size, np.float32(7)), np.empty(bounds.size - 1)
    kernels.add(update, residual, c, bounds, sums)
    return c, sums


@pytest.mark.parametrize("size", SIZES)
def test_add_and_copy_and_their_sums(size):
    rng = np.random.default_rng(size)
    update, residual = rng.normal(size=(2, size)).astype(np.float32)
    for other, expected in ((residual, update + residual), (None, update)):
        c, sums = add(update, other)
        assert sums[0] == pytest.approx(math.fsum(np.abs(expected)), rel=1e-14)
        np.testing.assert_array_equal(c, expected)


def test_some_layers_leave_the_others_as_they_are():
    update = np.arange(10, dtype=np.float32)
    c, sums = add(update, np.ones(10, np.float32), bounds=[2, 3, 3, 6])
    assert c.tolist() == [7, 7, 3, 4, 5, 6, 7, 7, 7, 7]
    assert sums.tolist() == [3, 0, 4 + 5 + 6]


def test_a_sum_over_a_large_layer_stays_exact():
    _, (total,) = add(np.full(5_000_000, 0.1, np.float32), None)
    assert total == pytest.approx(5_000_000 * float(np.float32(0.1)), rel=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 5, 999])
def test_a_sum_shows_what_is_not_finite(bad, index):
    update = np.ones(1000, np.float32)
    update[index] = bad
    assert not np.isfinite(add(update, None)[1][0])
    assert not np.isfinite(add(update, np.zeros_like(update))[1][0])


@given(seed=st.integers(0, 1000), size=st.integers(1, 300), data=st.data())
def test_largest_threshold_is_an_order_statistic(seed, size, data):
    count = data.draw(st.integers(1, size))
    rng = np.random.default_rng(seed)
    c = (rng.choice([0, 1e-42, 0.5, 1, 1e30], size) * rng.normal(size=size).round(1)).astype(np.float32)
    assert kernels.kth_magnitude(c, count) == np.sort(np.abs(c))[::-1][count - 1]


def halves(c, indices, stochastic=False):
    found = np.empty(c.size if indices is None else indices.size, np.uint16)
    kernels.take_halves(c, indices, stochastic, np.uint64(7), found)
    return found


def test_nearest_is_what_numpy_rounds_to():
    rng = np.random.default_rng(0)
    every = np.arange(0, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    halfway = ((every[:-1] + every[1:]) / 2).astype(np.float32)
    c = np.concatenate(
        [
            rng.integers(0, 0x477FE000, 2_000_000, dtype=np.uint32).view(np.float32),
            halfway,
            np.nextafter(halfway, np.float32(0)),
            np.nextafter(halfway, np.float32(1e9)),
        ]
    )
    c *= rng.choice([-1, 1], c.size).astype(np.float32)
    np.testing.assert_array_equal(halves(c, None), c.astype(np.float16).view(np.uint16))


@pytest.mark.parametrize("size", [*SIZES, 4095, 4096, 4097, 10_000])
@pytest.mark.parametrize("stochastic", [False, True])
def test_taking_what_is_listed(size, stochastic):
    """A value does not depend on what else is listed."""
    rng = np.random.default_rng(size)
    c, listed = rng.normal(size=size).astype(np.float32), np.flatnonzero(rng.random(size) < 0.4).astype(np.uint32)
    np.testing.assert_array_equal(halves(c, listed, stochastic), halves(c, None, stochastic)[listed])
    if not stochastic:
        np.testing.assert_array_equal(halves(c, listed).view(np.float16), c[listed].astype(np.float16))
