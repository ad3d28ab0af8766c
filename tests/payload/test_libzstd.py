"""libzstd called by address: the frames of Python's own module, and never more accepted than by it."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

from fedsparq.errors import WireError
from fedsparq.payload import libzstd
from fedsparq.payload.streams import Reader, Writer, varint

try:
    from compression import zstd
except ImportError:
    from backports import zstd

needed = pytest.mark.skipif(libzstd.packer() is None, reason="this build of Python's zstd hides libzstd")
MAGIC = b"\x28\xb5\x2f\xfd"
GUARD = 64


@pytest.mark.skipif(sys.platform != "linux" or sys.version_info >= (3, 14), reason="other builds may hide libzstd")
def test_the_wheels_for_linux_show_it():
    assert libzstd.packer() is not None
    assert libzstd.unpacker() is not None


@needed
@pytest.mark.parametrize("noise", [1, 2, 4, 40, 256])
def test_frames_are_those_of_the_module(noise):
    rng = np.random.default_rng(noise)
    sizes = [24, 25, 100, 255, 256, 257, 1000, 65_535, 65_792, 131_072, 131_073, 262_144, 262_145, 1 << 20, 3 << 20]
    for size in [*sizes, *rng.integers(24, 5000, 50)]:
        data = rng.integers(0, noise, size).astype(np.uint8)
        out = np.full(libzstd.most_packed(size) + GUARD, 7, np.uint8)
        length = libzstd.pack(libzstd.packer(), data, out[:-GUARD])
        frame = Writer().compress(data)
        assert length >= size if frame is None else out[:length].tobytes() == frame
        assert (out[-GUARD:] == 7).all()


@needed
def test_a_frame_that_has_too_little_room_is_an_error():
    data = np.random.default_rng(0).integers(0, 256, 1000).astype(np.uint8)
    assert libzstd.pack(libzstd.packer(), data, np.empty(900, np.uint8)) < 0


def block(kind: int, size: int, content: bytes, last: bool = True) -> bytes:
    """A block of a frame: raw (0), one byte many times (1), compressed (2) or of no kind there is (3)."""
    return (int(last) | kind << 1 | size << 3).to_bytes(3, "little") + content


def one_segment(size: int) -> bytes:
    return MAGIC + b"\xa0" + size.to_bytes(4, "little")


def with_window(log: int, size: int | None) -> bytes:
    declared = b"" if size is None else size.to_bytes(4, "little")
    return MAGIC + (b"\x00" if size is None else b"\x80") + bytes([(log - 10) << 3]) + declared


def streamed(data: bytes) -> bytes:
    """A frame that does not say how much it holds."""
    compressor = zstd.ZstdCompressor()
    return compressor.compress(data[:10]) + compressor.compress(data[10:]) + compressor.flush()


def checked(data: bytes) -> bytes:
    return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})


TEXT = bytes(range(50)) * 100
LONG = np.random.default_rng(0).integers(0, 4, 400_000).astype(np.uint8).tobytes()
K = 1 << 10
SOUND = {
    "ours": (Writer().compress(np.frombuffer(TEXT, np.uint8)), 5000),
    "another level": (zstd.compress(TEXT, level=19), 5000),
    "no size declared": (streamed(TEXT), 5000),
    "a checksum": (checked(TEXT), 5000),
    "several blocks": (zstd.compress(LONG), 400_000),
    "several blocks and a checksum": (checked(LONG), 400_000),
    "several blocks, no size declared": (streamed(LONG), 400_000),
    "a small window": (zstd.compress(LONG, options={zstd.CompressionParameter.window_log: 10}), 400_000),
    "one byte many times": (one_segment(5000) + block(1, 5000, b"x"), 5000),
    "an empty last block": (one_segment(5000) + block(1, 5000, b"x", last=False) + block(0, 0, b""), 5000),
    "no size, an empty last block": (with_window(13, None) + block(1, 5000, b"x", last=False) + block(0, 0, b""), 5000),
    "many blocks": (with_window(10, 9 * K) + 8 * block(1, K, b"x", last=False) + block(1, K, b"y"), 9 * K),
}
UNSOUND = {
    "a frame behind it": (zstd.compress(TEXT) + zstd.compress(b"x"), 5000),
    "an empty frame behind it": (zstd.compress(TEXT) + zstd.compress(b""), 5000),
    "an empty frame before it": (zstd.compress(b"") + zstd.compress(TEXT), 5000),
    "two frames": (zstd.compress(TEXT[:2500]) + zstd.compress(TEXT[2500:]), 5000),
    "a skippable frame behind it": (zstd.compress(TEXT) + b"\x50\x2a\x4d\x18\x01\0\0\0x", 5000),
    "a skippable frame before it": (b"\x50\x2a\x4d\x18\x01\0\0\0x" + zstd.compress(TEXT), 5000),
    "a skippable frame": (b"\x5f\x2a\x4d\x18\x04\0\0\0abcd", 5000),
    "a byte behind it": (zstd.compress(TEXT) + b"\0", 5000),
    "cut": (zstd.compress(TEXT)[:-1], 5000),
    "cut before its checksum": (checked(TEXT)[:-4], 5000),
    "a wrong checksum": (checked(TEXT)[:-1] + bytes([checked(TEXT)[-1] ^ 1]), 5000),
    "one byte more": (zstd.compress(bytes(5001)), 5000),
    "one byte less": (zstd.compress(bytes(4999)), 5000),
    "one byte more, undeclared": (streamed(bytes(5001)), 5000),
    "one byte less, undeclared": (streamed(bytes(4999)), 5000),
    "many more, undeclared": (streamed(bytes(5_000_000)), 5000),
    "a window of 8 MiB": (with_window(23, 5000) + block(1, 5000, b"x"), 5000),
    "a window of 2 TiB": (with_window(41, 5000) + block(1, 5000, b"x"), 5000),
    "declares 2^63": (MAGIC + b"\xe0" + (1 << 63).to_bytes(8, "little") + block(0, 1, b"x"), 5000),
    "declares 2^64 - 1": (MAGIC + b"\xe0" + b"\xff" * 8 + block(0, 1, b"x"), 5000),
    "declares too much": (one_segment(5001) + block(1, 5000, b"x"), 5000),
    "declares too little": (one_segment(4999) + block(1, 5000, b"x"), 5000),
    "a block of no kind": (one_segment(5000) + block(3, 5000, b"x"), 5000),
    "a block longer than 128 KiB": (one_segment(200_000) + block(1, 200_000, b"x"), 200_000),
    "a raw block longer than 128 KiB": (one_segment(200_000) + block(0, 200_000, bytes(200_000)), 200_000),
    "long blocks without a size": (with_window(20, None) + block(1, 200_000, b"x"), 200_000),
    "a block longer than its window": (with_window(10, 100_000) + block(1, 100_000, b"x"), 100_000),
    "a reserved bit": (MAGIC + b"\xa8" + (5000).to_bytes(4, "little") + block(1, 5000, b"x"), 5000),
    "a dictionary": (MAGIC + b"\xa1\x07" + (5000).to_bytes(4, "little") + block(1, 5000, b"x"), 5000),
    "no block": (one_segment(5000), 5000),
    "half a header": (one_segment(5000)[:7], 5000),
    "nothing but magic": (MAGIC, 5000),
    "no frame": (b"not a frame at all", 5000),
}


def by_the_module(frame: bytes, size: int) -> bytes | None:
    raw_size = max(size, len(frame) + 1)
    try:
        return Reader(memoryview(varint(len(frame)) + frame)).stream(raw_size, size)[0].tobytes()
    except WireError:
        return None


def by_address(frame: bytes, size: int) -> bytes | None:
    memory = np.full(size + 2 * GUARD, 7, np.uint8)
    sound = libzstd.unpack(libzstd.unpacker(), np.frombuffer(frame, np.uint8).copy(), memory[GUARD:-GUARD])
    assert (memory[:GUARD] == 7).all()
    assert (memory[-GUARD:] == 7).all()
    return memory[GUARD:-GUARD].tobytes() if sound == 0 else None


@needed
@pytest.mark.parametrize("name", SOUND)
def test_sound_frames(name):
    frame, size = SOUND[name]
    expected = by_the_module(frame, size)
    assert expected is not None
    assert by_address(frame, size) == expected
    for wrong in (1, size - 1, size + 1):
        assert by_address(frame, wrong) is None


@needed
@pytest.mark.parametrize("name", UNSOUND)
def test_unsound_frames(name):
    assert by_the_module(*UNSOUND[name]) is None
    assert by_address(*UNSOUND[name]) is None
    frame, size = SOUND["ours"]
    assert by_address(frame, size) == TEXT  # nothing is left of the frame before


@needed
@pytest.mark.parametrize("name", SOUND)
def test_damaged_frames_are_taken_as_by_the_module_or_not_at_all(name):
    frame, size = SOUND[name]
    rng = np.random.default_rng(len(frame))
    for case in range(300):
        damaged = bytearray(frame)
        at = int(rng.integers(min(len(frame), 40 if case % 2 else len(frame))))
        match case % 3:
            case 0:
                damaged[at] ^= 1 << int(rng.integers(8))
            case 1:
                del damaged[at]
            case _:
                damaged[at:at] = rng.bytes(1)
        found = by_address(bytes(damaged), size)
        assert found is None or found == by_the_module(bytes(damaged), size)


@needed
def test_each_thread_has_its_own_contexts_until_it_ends():
    seen = []

    def look() -> None:
        seen.extend([libzstd.packer()[1], libzstd.unpacker()[2]])
        contexts.extend(
            weakref.ref(context) for context in (libzstd._here.packing_context, libzstd._here.unpacking_context)
        )

    contexts = []
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    del thread
    gc.collect()
    assert {libzstd.packer()[1], libzstd.unpacker()[2]}.isdisjoint(seen)
    assert [context() for context in contexts] == [None, None]
    assert libzstd.packer() is libzstd.packer()


def test_a_library_without_the_functions_or_of_another_version_is_not_used(monkeypatch):
    monkeypatch.setattr(libzstd, "_EXTENSION", "numpy._core._multiarray_umath")
    assert libzstd._functions.__wrapped__() is None
    monkeypatch.setattr(libzstd, "_EXTENSION", "sys")
    assert libzstd._functions.__wrapped__() is None
    monkeypatch.setattr(libzstd, "_EXTENSION", "no_such_module")
    assert libzstd._functions.__wrapped__() is None
    monkeypatch.undo()
    monkeypatch.setattr(libzstd, "ZSTD_VERSION", (1, 0, 0))
    assert libzstd._functions.__wrapped__() is None
