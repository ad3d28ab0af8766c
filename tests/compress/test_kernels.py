"""Each loop against numpy or plain Python."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsparq.compress import kernels

SIZES = [0, 1, 2, 63, 64, 65, 127, 128, 129, 1000]


def splitmix64(seed, index):
    mask = 2**64 - 1
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@given(seed=st.integers(0, 2**64 - 1), index=st.integers(0, 2**40))
def test_random_bits_are_splitmix64(seed, index):
    bits = splitmix64(seed, index)
    assert int(kernels.random_bits(np.uint64(seed), np.uint64(index))) == bits
    assert kernels.uniform(np.uint64(seed), np.uint64(index)) == (bits >> 11) * 2.0**-53


def test_splitmix64_is_the_published_one():
    assert splitmix64(1234567, 0) == 6457827717110365317
    assert splitmix64(1234567, 1) == 3203168211198807973


def bitmap(mask):
    words = np.zeros((mask.size + 63) // 64 * 64, bool)
    words[: mask.size] = mask
    return np.packbits(words, bitorder="little").view("<u8").astype(np.uint64)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("threshold", [0.0, 1e-45, 0.7, 3.0, np.inf])
def test_mark_at_least(size, threshold):
    c = np.random.default_rng(size).normal(size=size).astype(np.float32)
    c[::7] = -0.0
    c[3::11] = np.float32(0.7)
    words = np.full((size + 63) // 64, 2**64 - 1, np.uint64)
    mask = np.abs(c) >= np.float32(threshold)
    assert kernels.mark_at_least(c, np.float32(threshold), words) == mask.sum()
    np.testing.assert_array_equal(words, bitmap(mask))


@pytest.mark.parametrize("size", SIZES)
def test_listing_and_marking_undo_each_other(size):
    mask = np.random.default_rng(size).random(size) < 0.3
    places = np.flatnonzero(mask) + 1000
    listed = np.empty(places.size, np.uint32)
    kernels.list_marked(bitmap(mask), 1000, listed)
    np.testing.assert_array_equal(listed, places)
    words = np.full((size + 63) // 64, 7, np.uint64)
    kernels.mark_places(listed, 1000, words)
    np.testing.assert_array_equal(words, bitmap(mask))


@pytest.mark.parametrize("size", SIZES)
def test_add_and_copy_and_their_sums(size):
    rng = np.random.default_rng(size)
    update, residual = rng.normal(size=(2, size)).astype(np.float32)
    c = np.empty(size, np.float32)
    assert kernels.add(update, residual, c) == pytest.approx(math.fsum(np.abs(update + residual)), rel=1e-14)
    np.testing.assert_array_equal(c, update + residual)
    assert kernels.copy(update, c) == pytest.approx(math.fsum(np.abs(update)), rel=1e-14)
    np.testing.assert_array_equal(c, update)


def test_a_sum_over_a_large_layer_stays_exact():
    c = np.full(5_000_000, 0.1, np.float32)
    total = kernels.copy(c, np.empty_like(c))
    assert total == pytest.approx(5_000_000 * float(np.float32(0.1)), rel=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 5, 999])
def test_a_sum_shows_what_is_not_finite(bad, place):
    update = np.ones(1000, np.float32)
    update[place] = bad
    assert not np.isfinite(kernels.copy(update, np.empty_like(update)))
    assert not np.isfinite(kernels.add(update, np.zeros_like(update), np.empty_like(update)))


@given(seed=st.integers(0, 1000), size=st.integers(1, 300), data=st.data())
def test_largest_threshold_is_an_order_statistic(seed, size, data):
    count = data.draw(st.integers(1, size))
    rng = np.random.default_rng(seed)
    c = (rng.choice([0, 1e-42, 0.5, 1, 1e30], size) * rng.normal(size=size).round(1)).astype(np.float32)
    assert kernels.largest_threshold(c, count) == np.sort(np.abs(c))[::-1][count - 1]


@given(seed=st.integers(0, 2**64 - 1), size=st.integers(0, 200), data=st.data())
def test_random_positions_as_the_format_tells_them(seed, size, data):
    count = data.draw(st.integers(0, size))
    expected = []
    for i in range(size):
        if ((splitmix64(seed, i) >> 32) * (size - i)) >> 32 < count - len(expected):
            expected.append(i)
    places = np.empty(count, np.uint32)
    kernels.random_positions(np.uint64(seed), size, count, places)
    assert places.tolist() == expected


def test_every_float16_becomes_its_float32():
    halves = np.arange(65536, dtype=np.uint16)
    halves = halves[np.isfinite(halves.view(np.float16))]
    out = np.empty(halves.size, np.float32)
    kernels.halves_to_floats(halves, out)
    np.testing.assert_array_equal(out.view(np.uint32), halves.view(np.float16).astype(np.float32).view(np.uint32))


def take_halves(c, mask=None, base=0):
    mask = np.ones(c.size, bool) if mask is None else mask
    left = c.copy()
    places, halves = np.empty(mask.sum(), np.uint32), np.empty(mask.sum(), np.uint16)
    taken = kernels.take_halves(left, bitmap(mask), np.float32(0), base, False, np.uint64(0), places, halves)
    assert taken == mask.sum()
    return places, halves, left


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
    _, halves, left = take_halves(c)
    expected = c.astype(np.float16)
    np.testing.assert_array_equal(halves, expected.view(np.uint16))
    np.testing.assert_array_equal(left, c - expected.astype(np.float32))


@pytest.mark.parametrize("size", SIZES)
def test_taking_lists_only_what_is_marked(size):
    rng = np.random.default_rng(size)
    c, mask = rng.normal(size=size).astype(np.float32), rng.random(size) < 0.4
    places, halves, left = take_halves(c, mask, base=77)
    np.testing.assert_array_equal(places, np.flatnonzero(mask) + 77)
    np.testing.assert_array_equal(halves.view(np.float16), c[mask].astype(np.float16))
    np.testing.assert_array_equal(left[~mask], c[~mask])
    values, rest = np.empty(mask.sum(), np.float32), c.copy()
    kernels.take_floats(rest, bitmap(mask), np.float32(0), 77, places, values)
    np.testing.assert_array_equal(values, c[mask])
    np.testing.assert_array_equal(rest, np.where(mask, 0, c))


@pytest.mark.parametrize("size", [*SIZES, 4095, 4096, 4097, 10_000])
@pytest.mark.parametrize("limit", [0.0, 0.7, 2.0, np.inf])
def test_a_limit_marks_what_its_bitmap_would(size, limit):
    c = np.random.default_rng(size).normal(size=size).astype(np.float32)
    mask = np.abs(c) >= np.float32(limit)
    expected = take_halves(c, mask, base=5)
    places, halves, left = np.empty(size, np.uint32), np.empty(size, np.uint16), c.copy()
    none = np.empty(0, np.uint64)
    count = kernels.take_halves(left, none, np.float32(limit), 5, False, np.uint64(0), places, halves)
    for found, wanted in zip((places[:count], halves[:count], left), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    values, left = np.empty(size, np.float32), c.copy()
    assert kernels.take_floats(left, none, np.float32(limit), 5, places, values) == count
    np.testing.assert_array_equal(values[:count], c[mask])


def test_places_reach_the_end_of_32_bits():
    c = np.ones(2, np.float32)
    places, _, _ = take_halves(c, base=2**32 - 3)
    assert places.tolist() == [2**32 - 3, 2**32 - 2]


def test_scatter_add():
    accumulator = np.arange(10, dtype=np.float32)
    places = np.array([1, 4, 9], np.uint32)
    values = np.array([0.5, -1, 2], np.float32)
    expected = accumulator.copy()
    expected[places] += np.float32(0.3) * values
    halves = accumulator.copy()
    kernels.scatter_add(accumulator, places, values, np.float32(0.3))
    np.testing.assert_array_equal(accumulator, expected)
    kernels.scatter_add_halves(halves, places, values.astype(np.float16).view(np.uint16), np.float32(0.3))
    np.testing.assert_array_equal(halves, expected)
