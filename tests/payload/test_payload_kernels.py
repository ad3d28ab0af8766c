"""Each loop of the values and selections against numpy or plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsparq.payload import kernels


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


@given(seed=st.integers(0, 2**64 - 1), size=st.integers(0, 200), data=st.data())
def test_random_indices_as_the_format_tells_them(seed, size, data):
    count = data.draw(st.integers(0, size))
    expected = []
    for i in range(size):
        if ((splitmix64(seed, i) >> 32) * (size - i)) >> 32 < count - len(expected):
            expected.append(i)
    indices = np.empty(count, np.uint32)
    kernels.random_indices(np.uint64(seed), size, count, indices)
    assert indices.tolist() == expected


def every_finite_float16():
    halves = np.arange(65536, dtype=np.uint16)
    return halves[np.isfinite(halves.view(np.float16))]


def test_every_float16_becomes_its_float32():
    halves = every_finite_float16()
    out = np.empty(halves.size, np.float32)
    kernels.halves_to_floats(halves, out)
    np.testing.assert_array_equal(out.view(np.uint32), halves.view(np.float16).astype(np.float32).view(np.uint32))


def test_float16_are_split_and_joined():
    halves = every_finite_float16()
    high, low, joined = (np.empty(halves.size, dtype) for dtype in (np.uint8, np.uint8, np.uint16))
    kernels.split_halves(halves, high, low)
    assert kernels.join_halves(high, low, joined) == 0
    np.testing.assert_array_equal(joined, halves)
    np.testing.assert_array_equal(high, (halves & 0x7FFF) >> 7)
    np.testing.assert_array_equal(low & 1, halves >> 15)
    for bad in (np.inf, -np.inf, np.nan):
        kernels.split_halves(np.array([1, bad], np.float16).view(np.uint16), high[:2], low[:2])
        assert kernels.join_halves(high[:2], low[:2], joined[:2]) == -1


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000])
def test_bits_are_packed_from_the_lowest_up(width, size):
    values = np.random.default_rng(size).integers(0, 1 << width, size).astype(np.uint8)
    packed, found = np.empty((size * width + 7) // 8, np.uint8), np.empty(size, np.uint8)
    kernels.pack(values, width, packed)
    number = sum(int(value) << (i * width) for i, value in enumerate(values))
    assert int.from_bytes(packed.tobytes(), "little") == number
    assert kernels.unpack(packed, width, found) == 0
    np.testing.assert_array_equal(found, values)
    if size * width % 8:
        packed[-1] |= 0x80
        assert kernels.unpack(packed, width, found) == -1


def test_adding():
    accumulator = np.arange(10, dtype=np.float32)
    values = np.linspace(-3, 3, 10).astype(np.float16)
    expected = accumulator + np.float32(0.3) * values.astype(np.float32)
    by_halves = accumulator.copy()
    kernels.add_scaled(accumulator, None, values.astype(np.float32), np.float32(0.3))
    np.testing.assert_array_equal(accumulator, expected)
    kernels.add_scaled_halves(by_halves, None, values.view(np.uint16), np.float32(0.3))
    np.testing.assert_array_equal(by_halves, expected)


def test_add_at_indices():
    accumulator = np.arange(10, dtype=np.float32)
    indices = np.array([1, 4, 9], np.uint32)
    values = np.array([0.5, -1, 2], np.float32)
    expected = accumulator.copy()
    expected[indices] += np.float32(0.3) * values
    by_halves = accumulator.copy()
    kernels.add_scaled(accumulator, indices, values, np.float32(0.3))
    np.testing.assert_array_equal(accumulator, expected)
    kernels.add_scaled_halves(by_halves, indices, values.astype(np.float16).view(np.uint16), np.float32(0.3))
    np.testing.assert_array_equal(by_halves, expected)
