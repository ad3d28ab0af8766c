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
    indices = np.empty(size + kernels.STRIDE, np.uint32)
    count = kernels.list_at_least(c, np.float32(threshold), indices)
    np.testing.assert_array_equal(indices[:count], np.flatnonzero(np.abs(c) >= np.float32(threshold)))


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
    assert kernels.largest_threshold(c, count) == np.sort(np.abs(c))[::-1][count - 1]


def take(c, listed, form=kernels.NEAREST):
    left, values = c.copy(), np.empty(listed.size, np.float32 if form == kernels.FLOAT32 else np.uint16)
    kernels.take_listed(left, listed.astype(np.uint32), form, np.uint64(0), values)
    return values, left


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
    halves, left = take(c, np.arange(c.size))
    expected = c.astype(np.float16)
    np.testing.assert_array_equal(halves, expected.view(np.uint16))
    np.testing.assert_array_equal(left, c - expected.astype(np.float32))


@pytest.mark.parametrize("size", SIZES)
def test_taking_what_is_listed(size):
    rng = np.random.default_rng(size)
    c, mask = rng.normal(size=size).astype(np.float32), rng.random(size) < 0.4
    halves, left = take(c, np.flatnonzero(mask))
    np.testing.assert_array_equal(halves.view(np.float16), c[mask].astype(np.float16))
    np.testing.assert_array_equal(left[~mask], c[~mask])
    np.testing.assert_array_equal(left[mask], c[mask] - c[mask].astype(np.float16).astype(np.float32))
    values, left = take(c, np.flatnonzero(mask), kernels.FLOAT32)
    np.testing.assert_array_equal(values, c[mask])
    np.testing.assert_array_equal(left, np.where(mask, 0, c))


@pytest.mark.parametrize("size", [*SIZES, 4095, 4096, 4097, 10_000])
@pytest.mark.parametrize("form", [kernels.FLOAT32, kernels.NEAREST, kernels.STOCHASTIC])
@pytest.mark.parametrize("limit", [0.0, 0.7, 2.0, np.inf])
def test_a_limit_takes_what_its_list_would(size, form, limit):
    c = np.random.default_rng(size).normal(size=5 + size + 300).astype(np.float32)
    bounds, limits = np.array([5, 5 + size, 5 + size, 5 + size + 200]), np.array([limit, 0.1, 1.0], np.float32)
    mask = np.abs(c) >= np.repeat(np.float32([np.inf, limit, 1, np.inf]), [5, size, 200, 100])
    values, left = take(c, np.flatnonzero(mask), form)
    indices, found = np.zeros(c.size + 3 + kernels.STRIDE, np.uint32), np.zeros(c.size + 3, values.dtype)
    end = kernels.take_at_least(c, bounds, limits, form, np.uint64(0), 3, indices, found)
    np.testing.assert_array_equal(indices[:end], [0, 0, 0, *np.flatnonzero(mask)])
    np.testing.assert_array_equal(found[:end], [0, 0, 0, *values])
    np.testing.assert_array_equal(c, left)


def test_indices_reach_the_end_of_32_bits():
    indices = np.empty(2 + kernels.STRIDE, np.uint32)
    count = kernels._list_block(np.ones(2, np.float32).view(np.uint32), np.uint32(0), 2**32 - 3, indices)
    assert indices[:count].tolist() == [2**32 - 3, 2**32 - 2]
