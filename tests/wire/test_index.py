"""Indices: every coding by hand, and every way to get one wrong."""

import numpy as np
import pytest
from forge import BITMAP, FLOAT16, GAPS, RICE, compressed, halves, message, raw, refused, varint
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsparq
from fedsparq import Layout
from fedsparq.payload.streams import Reader, Writer
from fedsparq.wire.chunks import CHUNK
from fedsparq.wire.index import IndexBuffer, read_index, write_index

LAYOUT = Layout.of({"a": (20,)})


def decoded(index, count=3, layout=LAYOUT):
    blob = message(layout, bytes([FLOAT16]) + index + halves(*range(1, count + 1)))
    return np.flatnonzero(fedsparq.decode(blob, layout).dense()).tolist()


def wrong(index, count=3, layout=LAYOUT, match=None):
    refused(message(layout, bytes([FLOAT16]) + index + halves(*range(1, count + 1))), layout, match)


def bitmap(*indices, size=20, spoil=0):
    bits = sum(1 << index for index in indices) | spoil
    return bytes([BITMAP]) + varint(len(indices)) + raw(bits.to_bytes((size + 7) // 8, "little"))


def gaps(data, count):
    return bytes([GAPS]) + varint(count) + varint(len(data)) + raw(data)


def rice(k, bits, count):
    """Bits as text, in the order in which they are read."""
    value = sum(1 << i for i, bit in enumerate(bits) if bit == "1")
    return bytes([RICE]) + varint(count) + bytes([k]) + value.to_bytes((len(bits) + 7) // 8, "little")


def test_the_same_indices_in_each_coding():
    assert decoded(bitmap(1, 2, 19)) == [1, 2, 19]
    assert decoded(gaps(b"\x01\x00\x10", 3)) == [1, 2, 19]
    assert decoded(rice(2, "010" + "000" + "1111000", 3)) == [1, 2, 19]
    assert decoded(rice(0, "10" + "0" + "1" * 16 + "0", 3)) == [1, 2, 19]


def test_a_gap_of_several_bytes():
    layout = Layout.of({"a": (CHUNK,)})
    assert decoded(gaps(b"\xff\xff\x3f", 1), 1, layout) == [CHUNK - 1]
    assert decoded(gaps(b"\x80\x01\x00", 2), 2, layout) == [128, 129]


@pytest.mark.parametrize(
    "index",
    [
        bytes([6]),
        bytes([255]),
        bitmap(1, 2),  # one index fewer than values
        bytes([BITMAP]) + varint(3) + raw(b"\x06\x00\x00"),  # fewer bits than the count
        bytes([BITMAP]) + varint(3) + raw(b"\x0f\x00\x00"),  # more bits than the count
        bytes([BITMAP]) + varint(3) + raw(b"\x06\x00\x10"),  # a bit behind the last coordinate
        bitmap(1, 2, 19, spoil=1 << 23),
        bytes([BITMAP]) + varint(0) + raw(b"\0\0\0"),
        bytes([BITMAP]) + varint(20) + raw(b"\xff\xff\x0f"),
        bytes([BITMAP]) + varint(2**60) + raw(b"\xff\xff\x0f"),
        bytes([BITMAP]) + b"\x83\x00" + raw(b"\x07\0\0"),  # a count of 3 in two bytes
        gaps(b"\x01\x00\x11", 3),  # index 20 of 20
        gaps(b"\x01\x00", 3),  # too short
        gaps(b"\x01\x00\x10\x00", 3),  # too long
        gaps(b"\x01\x00\x90", 3),  # unfinished
        gaps(b"\x01\x80\x00\x10", 3),  # more bytes than a number needs
        gaps(b"\xff\xff\xff\xff\x7f\x00\x00", 3),
        bytes([GAPS]) + varint(3) + varint(10) + raw(b"\x01\x00\x10"),  # longer than three bytes a gap
        rice(21, "0", 3),
        rice(2, "0" "10" + "0" "00" + "111110" "00", 3),  # beyond the end
        rice(0, "1" * 40, 3),
        rice(2, "0" "10" + "0" "00" + "11110" "00" + "1", 3),  # padding that is not zero
        rice(2, "0" "10" + "0" "00" + "11110" "00" + "0000" "00000000", 3),  # a whole byte of padding
    ],
)  # fmt: skip
def test_indices_that_are_not_exactly_right(index):
    wrong(index)


def test_compressed_indices_are_held_to_the_same():
    layout = Layout.of({"a": (4000,)})
    data = bytes([1]) * 500
    frame = bytes([BITMAP]) + varint(500) + compressed(data)
    assert len(decoded(frame, 500, layout)) == 500
    wrong(bytes([BITMAP]) + varint(500) + compressed(data[:-1]), 500, layout, "exactly the 500")
    wrong(bytes([BITMAP]) + varint(500) + compressed(data + b"\0"), 500, layout, "exactly the 500")
    wrong(bytes([BITMAP]) + varint(499) + compressed(data), 499, layout, "499")


@given(
    seed=st.integers(0, 2**32),
    start=st.sampled_from([0, 1, 12345, 2**32 - 1 - 3000]),
    size=st.integers(1, 3000),
    share=st.floats(0, 1),
    clumped=st.booleans(),
)
@settings(max_examples=300)
def test_round_trip(seed, start, size, share, clumped):
    rng = np.random.default_rng(seed)
    mask = rng.random(size) < share
    if clumped:
        mask = np.repeat(mask[: size // 10 + 1], 10)[:size]
    indices = np.flatnonzero(mask).astype(np.uint32)
    writer = Writer()
    write_index(writer, indices + np.uint32(start), start, size)
    reader = Reader(memoryview(writer.with_checksum())[:-8])
    _, received = read_index(reader, start, size, IndexBuffer())
    assert reader.left == 0
    np.testing.assert_array_equal(received, indices + np.uint32(start))


@pytest.mark.parametrize("share", [1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.29, 0.31, 0.4, 0.5, 0.9])
def test_indices_cost_little_more_than_their_entropy(share):
    rng = np.random.default_rng(0)
    indices = np.flatnonzero(rng.random(CHUNK) < share).astype(np.uint32)
    writer = Writer()
    write_index(writer, indices, 0, CHUNK)
    bits = 8 * (len(writer.with_checksum()) - 8)
    p = indices.size / CHUNK
    bound = CHUNK * -(p * np.log2(p) + (1 - p) * np.log2(1 - p))
    assert bits <= 1.05 * bound + 120
