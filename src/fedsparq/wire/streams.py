"""Bytes out and bytes in: whole numbers, arrays, and arrays that zstd may make smaller."""

from __future__ import annotations

import sys
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

TINY = 24
"""Below this many bytes a zstd frame cannot win: it has 9 of its own."""

_COMPRESSION: dict[int, int] = {
    zstd.CompressionParameter.strategy: zstd.Strategy.fast,
    zstd.CompressionParameter.min_match: 7,
    zstd.CompressionParameter.hash_log: 6,
    zstd.CompressionParameter.window_log: 18,
    zstd.CompressionParameter.target_length: 0,
}
"""Nearly Huffman coding alone: on these bytes both smaller and faster than zstd's own levels."""

_DECOMPRESSION: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 22}
"""No frame of ours holds more than 4 MiB, so none may ask for a larger window."""


class Writer:
    def __init__(self) -> None:
        self._out = bytearray()
        self._zstd = zstd.ZstdCompressor(options=_COMPRESSION)

    def raw(self, data: bytes | NDArray[Any]) -> None:
        self._out += data if isinstance(data, bytes) else data.data

    def byte(self, value: int) -> None:
        self._out.append(value)

    def varint(self, value: int) -> None:
        self._out += varint(value)

    def squeeze(self, data: Bytes) -> bytes | None:
        """The zstd frame of these bytes if it is smaller than they are."""
        if data.size < TINY:
            return None
        frame = self._zstd.compress(data.data, self._zstd.FLUSH_FRAME)
        return frame if len(frame) < data.size else None

    def squeezed(self, data: Bytes) -> tuple[bytes, bytes | Bytes]:
        """The two parts of a stream: raw bytes, whose number the reader knows, behind a 0; or a smaller zstd frame
        behind its length."""
        frame = self.squeeze(data)
        return (varint(len(frame)), frame) if frame else (varint(0), data)

    def stream(self, raw: bytes | NDArray[Any], frame: bytes | None) -> None:
        """A stream of raw bytes, or of the zstd frame where there is one."""
        self.varint(len(frame) if frame else 0)
        self.raw(frame or raw)

    def sealed(self) -> bytes:
        """All that was written, and its checksum."""
        self._out += xxhash.xxh3_64_intdigest(self._out).to_bytes(8, "little")
        return self.bytes()

    def bytes(self) -> bytes:
        return bytes(self._out)


class Reader:
    """Reads a message that may be hostile: no length is believed before it is checked against what must be there."""

    def __init__(self, data: memoryview) -> None:
        self._data = np.frombuffer(data, np.uint8)
        self._end = len(data)
        self._at = 0

    @property
    def left(self) -> int:
        return self._end - self._at

    @property
    def at(self) -> int:
        return self._at

    def raw(self, count: int) -> memoryview:
        return self.take(count).data

    def take(self, count: int) -> Bytes:
        """The next bytes as an array, not copied."""
        start, end = self._at, self._at + count
        if end > self._end:
            raise WireError(f"the message ends after {self._end} bytes; {end - self._end} more were expected")
        self._at = end
        return self._data[start:end]

    def rest(self) -> Bytes:
        """All that is left, without moving on."""
        return self._data[self._at :]

    def byte(self) -> int:
        if self._at == self._end:
            raise WireError(f"the message ends after {self._end} bytes; one more was expected")
        self._at += 1
        return int(self._data[self._at - 1])

    def number(self, size: int) -> int:
        """A whole number of so many bytes."""
        return int.from_bytes(self.raw(size), "little")

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        """A copy of `count` little-endian numbers."""
        kind = np.dtype(dtype)
        return np.frombuffer(self.raw(count * kind.itemsize), kind).astype(kind.newbyteorder("="))

    def varint(self, most: int) -> int:
        """A whole number that may not exceed `most`."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 63:
                raise WireError("a number has more than ten bytes; the message is damaged")
        if byte == 0 and shift > 7:
            raise WireError("a number is written with more bytes than it needs; the message is damaged")
        if value > most:
            raise WireError(f"a count or length is {value:,}; at this place it can be {most:,} at most")
        return value

    def stream(self, raw_size: int, size: int) -> tuple[Bytes, bool]:
        """Undo `Writer.stream`: `raw_size` bytes as they are and True, or `size` bytes out of zstd and False."""
        length = self.varint(max(raw_size - 1, 0))
        if length == 0:
            return self.take(raw_size), True
        frame = self.raw(length)
        try:
            unpacker = zstd.ZstdDecompressor(options=_DECOMPRESSION)
            data = unpacker.decompress(frame, size)
            if len(data) == size and not unpacker.eof:
                data += unpacker.decompress(b"", 1)
        except zstd.ZstdError as error:
            raise WireError(f"a zstd frame is damaged: {error}") from None
        if len(data) != size or not unpacker.eof or unpacker.unused_data:
            raise WireError(f"a zstd frame does not hold exactly the {size:,} bytes that belong there")
        return np.frombuffer(data, np.uint8), False


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
