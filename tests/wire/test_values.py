"""Values: every kind by hand, and every way to get one wrong."""

import struct

import numpy as np
import pytest
from forge import (
    ALL,
    CODEBOOK,
    EMPTY,
    FLOAT16,
    FLOAT32,
    UNIFORM,
    compressed,
    floats,
    halves,
    message,
    raw,
    refused,
    varint,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsparq
from fedsparq import Layout, Payload
from fedsparq.payload import Codebook, Dense, Float16Values, UniformLevels

LAYOUT = Layout.of({"a": (3,)})


def decoded(layer):
    return fedsparq.decode(message(LAYOUT, layer), LAYOUT).dense().tolist()


def wrong(layer, match=None):
    refused(message(LAYOUT, layer), LAYOUT, match)


def uniform(top, step, *streams, signs=b"\x02"):
    return bytes([UNIFORM]) + varint(top) + floats(step) + bytes([ALL]) + signs + b"".join(streams)


def codebook(table, *streams, signs=b"\x02"):
    return bytes([CODEBOOK | len(table) << 2]) + floats(*table) + bytes([ALL]) + signs + b"".join(streams)


def test_each_kind_by_hand():
    assert decoded(bytes([FLOAT32, ALL]) + floats(1.5, -2, 1e-45)) == np.float32([1.5, -2, 1e-45]).tolist()
    assert decoded(bytes([FLOAT16, ALL]) + halves(1.5, -2, 6e-8)) == np.float16([1.5, -2, 6e-8]).tolist()
    assert decoded(uniform(1, 0.5)) == [0.5, -0.5, 0.5]
    assert decoded(uniform(3, 0.5, raw(b"\x24"))) == [0.5, -1, 1.5]  # levels less one: 0, 1, 2 in two bits each
    assert decoded(uniform(300, 1, raw(b"\x00\x01\x2b"), raw(b"\x04"))) == [1, -2, 300]
    assert decoded(codebook([0.25])) == [0.25, -0.25, 0.25]
    assert decoded(codebook([1, 4], raw(b"\x06"))) == [1, -4, 4]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_the_layers_name(bad):
    wrong(bytes([FLOAT32, ALL]) + floats(1, bad, 2), "'a'")
    wrong(bytes([FLOAT16, ALL]) + halves(1, bad, 2), "'a'")
    wrong(uniform(1, bad), "'a'")
    wrong(codebook([bad]), "'a'")


@pytest.mark.parametrize(
    "layer",
    [
        bytes([4 | FLOAT32, ALL]) + floats(1, 2, 3),
        bytes([4 | FLOAT16, ALL]) + halves(1, 2, 3),
        bytes([4 | UNIFORM, 1]) + floats(1) + bytes([ALL, 0]),
        bytes([FLOAT32, ALL]) + floats(1, 2),
        bytes([FLOAT32, ALL]) + floats(1, 2, 3, 4),
        bytes([FLOAT16, ALL]) + halves(1, 2),
        bytes([FLOAT16, ALL]) + raw(b"\0\0\0"),
        bytes([FLOAT16, ALL]) + varint(3) + b"\0\0\0" + raw(b"\0\0\0"),  # a frame that saves nothing
        uniform(1, 0.0),
        uniform(1, -1.0),
        uniform(2, 3e38, raw(b"\x00")),  # twice the step is beyond float32
        bytes([UNIFORM]) + varint(32768) + floats(1e-3) + bytes([ALL, 0]) + raw(b"\0\0\0") + raw(b"\0\0\0"),
        bytes([UNIFORM, 0, ALL, 0]),  # values without a level
        bytes([CODEBOOK, ALL, 0]),
        uniform(3, 0.5, raw(b"\x34")),  # level 4 of 3
        uniform(3, 0.5, raw(b"\x64")),  # a bit behind the last level
        uniform(1, 0.5, signs=b"\x0a"),  # a bit behind the last sign
        uniform(300, 1, raw(b"\x00\x01\x2c"), raw(b"\x04")),  # level 301 of 300
        uniform(300, 1, raw(b"\x00\x01\x2b"), raw(b"\x0c")),  # padding of the second plane
        uniform(3, 0.5),
        codebook([-1.0]),
        codebook([1, 2, 3], raw(b"\x34")),
    ],
)
def test_values_that_are_not_exactly_right(layer):
    wrong(layer)


def test_compressed_levels_are_one_byte_each():
    layout = Layout.of({"a": (200,)})
    signs = bytes(25)

    def blob(data):
        return message(layout, bytes([UNIFORM]) + varint(200) + floats(2) + bytes([ALL]) + signs + compressed(data))

    data = bytes([3]) * 199 + bytes([199])
    assert fedsparq.decode(blob(data), layout).dense()[-2:].tolist() == [8, 400]
    refused(blob(data[:-1] + bytes([200])), layout, "above 200")
    refused(blob(data[:-1]), layout, "exactly the 200")


def test_a_layer_that_sends_nothing_still_names_its_kind():
    for header in (
        bytes([FLOAT32]),
        bytes([FLOAT16]),
        bytes([UNIFORM, 0]),
        bytes([CODEBOOK]),
        bytes([UNIFORM, 1]) + floats(1),
    ):
        assert decoded(header + bytes([EMPTY])) == [0, 0, 0]


@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 3000),
    top=st.sampled_from([1, 2, 3, 4, 7, 16, 255, 256, 257, 258, 1000, 32767]),
    skewed=st.booleans(),
)
@settings(max_examples=150)
def test_levels_of_every_width(seed, count, top, skewed):
    rng = np.random.default_rng(seed)
    levels = np.minimum(rng.geometric(0.3, count), top) if skewed else rng.integers(1, top + 1, count)
    levels = (levels * rng.choice([-1, 1], count)).astype(np.int16)
    layout = Layout.of({"a": (count,)})
    payload = Payload(layout, Dense(count), (UniformLevels(np.float32(1e-3), levels),))
    (received,) = fedsparq.decode(fedsparq.encode(payload), layout).values
    np.testing.assert_array_equal(received.levels, levels)
    assert received.step == np.float32(1e-3)


@pytest.mark.parametrize("size", [1, 2, 3, 63])
def test_tables_of_every_size(size):
    rng = np.random.default_rng(size)
    layout = Layout.of({"a": (500,)})
    table = np.sort(rng.exponential(size=size)).astype(np.float32)
    levels = (rng.integers(1, size + 1, 500) * rng.choice([-1, 1], 500)).astype(np.int16)
    payload = Payload(layout, Dense(500), (Codebook(table, levels),))
    received = fedsparq.decode(fedsparq.encode(payload), layout)
    np.testing.assert_array_equal(received.values[0].table, table)
    assert received.dense().tobytes() == payload.dense().tobytes()


def test_every_finite_float16_travels():
    bits = np.arange(65536, dtype=np.uint16)
    bits = bits[np.isfinite(bits.view(np.float16))]
    layout = Layout.of({"a": bits.shape})
    values = Float16Values(bits)
    received = fedsparq.decode(fedsparq.encode(Payload(layout, Dense(bits.size), (values,))), layout)
    np.testing.assert_array_equal(received.values[0].bits, bits)


def test_float16_values_cost_little_more_than_their_entropy():
    values = np.random.default_rng(0).laplace(scale=1e-3, size=500_000).astype(np.float16)
    layout = Layout.of({"a": values.shape})
    halves_ = Float16Values(values.view(np.uint16))
    size = len(fedsparq.encode(Payload(layout, Dense(values.size), (halves_,))))
    turned = values.view(np.uint16) << 1 | values.view(np.uint16) >> 15
    shares = np.bincount(turned >> 8) / values.size
    bound = 8 - (shares[shares > 0] * np.log2(shares[shares > 0])).sum()
    assert 8 * size / values.size < bound * 1.01


def test_the_step_of_a_layer_is_little_endian():
    blob = message(LAYOUT, bytes([UNIFORM, 1]) + struct.pack("<f", 0.5) + bytes([ALL, 0]))
    assert fedsparq.decode(blob, LAYOUT).dense().tolist() == [0.5] * 3
