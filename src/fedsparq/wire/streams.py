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

_TINY = 24
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
    """Collects the parts of a message. Arrays are not copied: they must stay as they are until it is sealed."""

    def __init__(self) -> None:
        self._parts: list[bytes | NDArray[Any]] = []
        self._zstd = zstd.ZstdCompressor(options=_COMPRESSION)

    def raw(self, data: bytes | NDArray[Any]) -> None:
        if len(data):
            self._parts.append(data)

    def byte(self, value: int) -> None:
        self._parts.append(value.to_bytes(1))

    def varint(self, value: int) -> None:
        self._parts.append(varint(value))

    def squeeze(self, data: Bytes) -> bytes | None:
        """The zstd frame of these bytes if it is smaller than they are."""
        if data.size < _TINY:
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
        """All parts, and the checksum behind them."""
        checksum = xxhash.xxh3_64()
        for part in self._parts:
            checksum.update(_buffer(part))
        self.raw(checksum.intdigest().to_bytes(8, "little"))
        return self.bytes()

    def bytes(self) -> bytes:
        return b"".join(_buffer(part) for part in self._parts)


class Reader:
    """Reads a message that may be hostile: no length is believed before it is checked against what must be there."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    @property
    def at(self) -> int:
        return self._at

    def raw(self, count: int) -> memoryview:
        if count > self.left:
            raise WireError(f"the message ends after {len(self._data)} bytes; {count - self.left} more were expected")
        self._at += count
        return self._data[self._at - count : self._at]

    def rest(self) -> Bytes:
        """All that is left, without moving on."""
        return np.frombuffer(self._data[self._at :], np.uint8)

    def byte(self) -> int:
        return self.raw(1)[0]

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
            return np.frombuffer(self.raw(raw_size), np.uint8), True
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


def _buffer(part: bytes | NDArray[Any]) -> bytes | memoryview:
    return part if isinstance(part, bytes) else part.data
