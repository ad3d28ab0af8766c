"""Whole numbers and streams, there and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsparq.errors import WireError
from fedsparq.payload.streams import Reader, Writer, varint


def plain_varint(value):
    out = b""
    while value >= 128:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


@given(st.integers(0, 2**63))
def test_numbers_there_and_back(value):
    written = varint(value)
    assert written == plain_varint(value)
    reader = Reader(memoryview(written))
    assert reader.varint(2**63) == value
    assert reader.left == 0


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"\xff\xff", b"\x80\x00", b"\xff\x80\x00", b"\xff" * 11, b"\x80" * 9 + b"\x02"]
)
def test_numbers_that_are_not_exactly_right(data):
    with pytest.raises(WireError):
        Reader(memoryview(data)).varint(2**63)


def test_a_number_above_what_can_be():
    with pytest.raises(WireError, match="101"):
        Reader(memoryview(varint(101))).varint(100)
    assert Reader(memoryview(varint(100))).varint(100) == 100


@pytest.mark.parametrize("size", [0, 1, 23, 24, 25, 1000, 300_000, 3_000_000])
@pytest.mark.parametrize("noise", [1, 4, 256])
def test_streams_there_and_back(size, noise):
    data = np.random.default_rng(size).integers(0, noise, size).astype(np.uint8)
    writer = Writer()
    frame = writer.compress(data)
    writer.stream(data, frame)
    assert frame is None or len(frame) < size
    received, was_raw = Reader(memoryview(writer.with_checksum())[:-8]).stream(size, size)
    np.testing.assert_array_equal(received, data)
    assert was_raw == (frame is None)


def test_a_buffer_may_be_used_again_once_it_was_written() -> None:
    writer, buffer = Writer(), np.array([1, 2], np.uint8)
    writer.raw(buffer)
    buffer[:] = 9
    writer.raw(buffer)
    assert writer.bytes() == bytes([1, 2, 9, 9])
