"""Writing and reading bytes: integers, arrays, and arrays that zstd may compress."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedsparq.errors import WireError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Bytes = NDArray[np.uint8]

ZSTD_VERSION = zstd.zstd_version_info

_BYTES = tuple(bytes((value,)) for value in range(256))

MIN_ZSTD_INPUT = 24
"""Below this many bytes a zstd frame cannot win: it has 9 of its own."""

COMPRESSION: dict[int, int] = {
    zstd.CompressionParameter.strategy: zstd.Strategy.fast,
    zstd.CompressionParameter.min_match: 7,
    zstd.CompressionParameter.hash_log: 6,
    zstd.CompressionParameter.window_log: 18,
    zstd.CompressionParameter.target_length: 0,
}
"""Nearly Huffman coding alone: on these bytes both smaller and faster than zstd's own levels."""

MAX_WINDOW = 1 << 22
"""No frame of ours holds more than 4 MiB, so none may ask for a larger window. It is read from the header here: to set
zstd's own limit takes longer than to read a short frame."""


_here = threading.local()


def _frame(data: Bytes) -> bytes:
    """Return a zstd frame of these bytes, by this thread's compressor: a new one would cost as much as a few frames."""
    compressor = getattr(_here, "compressor", None) or zstd.ZstdCompressor(options=COMPRESSION)
    _here.compressor = None  # what was broken off in the middle of a frame is not used again
    frame = compressor.compress(data.data, compressor.FLUSH_FRAME)
    _here.compressor = compressor
    return frame


class Writer:
    """Writes a message: plain bytes, integers, and streams that zstd may compress."""

    def __init__(self) -> None:
        self._out = list[bytes | memoryview]()

    def raw(self, data: bytes | NDArray[Any]) -> None:
        self._out.append(data if isinstance(data, bytes) else data.tobytes())

    def byte(self, value: int) -> None:
        self._out.append(_BYTES[value])

    def varint(self, value: int) -> None:
        self._out.append(varint(value))

    def compress(self, data: Bytes) -> bytes | None:
        """Return the zstd frame of these bytes if it is smaller than they are."""
        if data.size < MIN_ZSTD_INPUT:
            return None
        frame = _frame(data)
        return frame if len(frame) < data.size else None

    def compressed(self, data: Bytes) -> tuple[bytes, bytes | Bytes]:
        """Return the two parts of a stream: 0 and the raw bytes, whose number the reader knows; or the length of a
        smaller zstd frame, and the frame."""
        frame = self.compress(data)
        return (varint(len(frame)), frame) if frame else (varint(0), data)

    def stream(self, raw: bytes | NDArray[Any], frame: bytes | None) -> None:
        """Write a stream of raw bytes, or of the zstd frame that `compress` returned."""
        self.varint(len(frame) if frame else 0)
        self.raw(frame or raw)

    def with_checksum(self) -> bytes:
        """Return all that was written, and its checksum."""
        checksum = xxhash.xxh3_64()
        for part in self._out:
            checksum.update(part)
        self._out.append(checksum.intdigest().to_bytes(8, "little"))
        return self.bytes()

    def bytes(self) -> bytes:
        return b"".join(self._out)

    def add(self, other: Writer) -> None:
        """Add all that another writer has written."""
        self._out += other._out


class Reader:
    """Reads a message that may be malicious: each length is checked against what must be there before it is used."""

    def __init__(self, data: memoryview) -> None:
        self._bytes, self._data = data, np.frombuffer(data, np.uint8)
        self._end = len(data)
        self.at = 0

    @property
    def left(self) -> int:
        return self._end - self.at

    def raw(self, count: int) -> memoryview:
        return self._bytes[self._next(count)]

    def take(self, count: int) -> Bytes:
        """Return the next bytes as an array; they are not copied."""
        return self._data[self._next(count)]

    def _next(self, count: int) -> slice:
        start, self.at = self.at, self.at + count
        if self.at > self._end:
            raise WireError(f"the message ends after {self._end} bytes; more are expected: {self.at - self._end}")
        return slice(start, self.at)

    def rest(self) -> Bytes:
        """Return all that is left, without moving on."""
        return self._data[self.at :]

    def byte(self) -> int:
        at = self.at
        if at >= self._end:
            self._next(1)
        self.at = at + 1
        return self._bytes[at]

    def number(self, size: int) -> int:
        """Read an integer of `size` bytes."""
        return int.from_bytes(self.raw(size), "little")

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        """Read a copy of `count` little-endian numbers."""
        kind = np.dtype(dtype)
        return np.frombuffer(self.raw(count * kind.itemsize), kind).astype(kind.newbyteorder("="))

    def varint(self, most: int) -> int:
        """Read an integer that may not exceed `most`."""
        value = self.byte()
        if value >= 0x80:
            value = self._longer(value & 0x7F)
        if value > most:
            raise WireError(f"a count or length is {value:,}; at this place it can be {most:,} at most")
        return value

    def _longer(self, value: int) -> int:
        """Read an integer whose first byte states that more follow."""
        for shift in range(7, 64, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte == 0:
                raise WireError("a number is written with more bytes than it needs; the message is damaged")
            if byte < 0x80:
                return value
        raise WireError("a number has more than ten bytes; the message is damaged")

    def stream(self, raw_size: int, size: int) -> tuple[Bytes, bool]:
        """Undo `Writer.stream`: `raw_size` bytes as they are and True, or `size` bytes out of zstd and False."""
        length = self.varint(raw_size - 1 if raw_size else 0)
        if length == 0:
            return self.take(raw_size), True
        frame = self.raw(length)
        if _window(frame) > MAX_WINDOW:
            raise WireError("a zstd frame asks for more memory than any of FSQ1's needs")
        try:
            unpacker = zstd.ZstdDecompressor()
            data = unpacker.decompress(frame, size)
            if len(data) == size and not unpacker.eof:
                data += unpacker.decompress(b"", 1)
        except zstd.ZstdError as error:
            raise WireError(f"a zstd frame is damaged: {error}") from None
        if len(data) != size or not unpacker.eof or unpacker.unused_data:
            raise WireError(f"a zstd frame does not hold exactly the {size:,} bytes that belong there")
        return np.frombuffer(data, np.uint8), False


def _window(frame: memoryview) -> int:
    """Return how much memory a zstd frame asks for, by its header (RFC 8878, 3.1.1.1); 0 if it has none."""
    if len(frame) < 6:
        return 0
    about, byte = frame[4], frame[5]
    if not about & 0x20:
        base = 1 << (10 + (byte >> 3))
        return base + (base >> 3) * (byte & 7)
    begin, flag = 5 + (0, 1, 2, 4)[about & 3], about >> 6
    size = int.from_bytes(frame[begin : begin + (1 << flag)], "little")
    return size + 256 if flag == 1 else size


def varint(value: int) -> bytes:
    """Return seven bits per byte, the lowest first; the top bit states that more follow."""
    if value <= 0x7F:
        return _BYTES[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
