"""zstd frames in messages, above all those that lie about their size."""

import numpy as np
import pytest
from forge import ALL, FLOAT16, message, peak_bytes, raw, refused, varint, zstd

import fedsparq
from fedsparq import Layout

SIZE = 1 << 20
LAYOUT = Layout.of({"a": (SIZE,)})


def halves_from(stream):
    """A message whose float16 high bytes are this stream."""
    return message(LAYOUT, bytes([FLOAT16, ALL]) + stream + raw(bytes(SIZE)))


def framed(frame):
    return varint(len(frame)) + frame


def zstd_header(content_size, window_log=None):
    """The start of a frame that declares this much content, as one segment or behind a window."""
    if window_log is None:
        return b"\x28\xb5\x2f\xfd" + b"\xe0" + content_size.to_bytes(8, "little")
    return b"\x28\xb5\x2f\xfd" + b"\xc0" + bytes([(window_log - 10) << 3]) + content_size.to_bytes(8, "little")


RAW_BLOCK = b"\x09\x00\x00\x00"  # the last block of a frame: one raw byte
RLE_BLOCK = (1 | 1 << 1 | 131_072 << 3).to_bytes(3, "little") + b"\0"  # 128 KiB of zeros in four bytes

LIES = {
    "declares 8 GB in one segment": zstd_header(2**33) + RAW_BLOCK,
    "declares 2^63 bytes": zstd_header(2**63) + RAW_BLOCK,
    "declares 8 GB behind a small window": zstd_header(2**33, 18) + RAW_BLOCK,
    "asks for a window of 2 GB": zstd_header(SIZE, 31) + RAW_BLOCK,
    "asks for a window of 8 MB": zstd_header(SIZE, 23) + RAW_BLOCK,
    "declares the right size, holds one byte": zstd_header(SIZE) + RAW_BLOCK,
    "declares one byte more": zstd.compress(bytes(SIZE + 1)),
    "declares one byte less": zstd.compress(bytes(SIZE - 1)),
    "is followed by a second frame": zstd.compress(bytes(SIZE)) + zstd.compress(b"more"),
    "is followed by a skippable frame": zstd.compress(bytes(SIZE)) + b"\x50\x2a\x4d\x18\x01\0\0\0x",
    "is a skippable frame": b"\x50\x2a\x4d\x18\x04\0\0\0abcd",
    "is a skippable frame of 4 GB": b"\x50\x2a\x4d\x18\xff\xff\xff\xffabcd",
    "is cut": zstd.compress(bytes(SIZE))[:-1],
    "is a bomb": zstd.compress(bytes(300_000_000)),
    "is a bomb that declares nothing": b"\x28\xb5\x2f\xfd\x00" + bytes([8 << 3]) + (RLE_BLOCK[:3] + b"\0") * 200,
    "needs a dictionary": b"\x28\xb5\x2f\xfd" + b"\x23\x07\x00\x00\x00" + b"\x05" + RAW_BLOCK,
    "is no frame": b"not a frame at all",
    "is empty content": zstd.compress(b""),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_frame_that_lies(lie):
    blob = halves_from(framed(LIES[lie]))
    peak = peak_bytes(lambda: refused(blob, LAYOUT))
    assert peak < 2 * 4 * SIZE  # twice the model


def test_a_frame_that_does_not_lie():
    blob = halves_from(framed(zstd.compress(bytes(SIZE))))
    assert not fedsparq.decode(blob, LAYOUT).dense().any()


@pytest.mark.parametrize("level", [1, 3, 9, 15])
def test_frames_by_any_zstd_encoder_are_read(level):
    high = np.minimum(np.random.default_rng(0).geometric(0.1, SIZE), 100).astype(np.uint8)
    blob = halves_from(framed(zstd.compress(high.tobytes(), level=level)))
    (values,) = fedsparq.decode(blob, LAYOUT).values
    np.testing.assert_array_equal(values.bits >> 7 & 0xFF, high)


def test_a_frame_as_long_as_what_it_holds_is_refused():
    layout = Layout.of({"a": (20,)})
    frame = zstd.compress(bytes(range(20)))
    assert len(frame) >= 20
    refused(message(layout, bytes([FLOAT16, ALL]) + framed(frame) + raw(bytes(20))), layout, "at most")
