"""Which coordinates of one chunk are sent: of all codings, the shortest."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.payload.selection import Indices
from fedsparq.payload.streams import Bytes, Reader, Writer, varint
from fedsparq.wire import index_kernels as kernels
from fedsparq.wire.index_kernels import MAX_RICE

BITMAP_FROM = 0.15
GAPS_TO = 0.30
RICE_TO = 0.04
FEW = 4096


class IndexCoding(IntEnum):
    EMPTY = 0
    ALL = 1
    BITMAP = 2
    GAPS = 3
    RICE = 4
    SEEDED = 5


_CODINGS = {coding.value: coding for coding in IndexCoding}
_NONE = np.empty(0, np.uint32)


def write_index(writer: Writer, indices: Indices, start: int, size: int) -> None:
    """Say which coordinates of the chunk from `start` on, `size` long, are sent."""
    if indices.size in (0, size):
        writer.byte(IndexCoding.ALL if indices.size else IndexCoding.EMPTY)
        return
    options = []
    if indices.size >= BITMAP_FROM * size:
        options.append(_bitmap(writer, indices, start, size))
    if indices.size <= GAPS_TO * size:
        options.append(_gaps(writer, indices, start))
    if indices.size <= max(RICE_TO * size, FEW):
        options.append(_rice(indices, start, size))
    coding, header, body = min(options, key=lambda option: len(option[1]) + len(option[2]))
    writer.byte(coding)
    writer.varint(indices.size)
    writer.raw(header)
    writer.raw(body)


class Arena:
    """Memory for the indices of all chunks, one behind the other, so that they need not be put together."""

    def __init__(self, size: int = 0) -> None:
        self._memory, self._used = np.empty(size, np.uint32), 0

    def part(self, where: slice) -> Arena:
        """An arena that is a part of this one's memory."""
        arena = Arena()
        arena._memory = self._memory[where]
        return arena

    def take(self, count: int) -> Indices:
        before, self._used = self._used, self._used + count
        if self._used > self._memory.size:
            longer = np.empty(max(self._used, 2 * self._memory.size), np.uint32)
            longer[:before] = self._memory[:before]
            self._memory = longer
        return self._memory[before : self._used]

    @property
    def taken(self) -> Indices:
        return self._memory[: self._used]


def read_index(reader: Reader, start: int, size: int, arena: Arena | None = None) -> tuple[IndexCoding, Indices]:
    """The coding of a chunk's indices, and those that are listed: none where all or seeded ones are meant."""
    code = reader.byte()
    coding = _CODINGS.get(code)
    if coding is None:
        raise WireError(f"index coding {code} is not one of FSQ1's; the message is damaged or of a later version")
    if coding is IndexCoding.EMPTY or coding is IndexCoding.ALL or coding is IndexCoding.SEEDED:
        return coding, _NONE
    count = reader.varint(size - 1)
    if count == 0:
        raise WireError("a chunk lists no indices; it should say that it is empty")
    indices = (arena or Arena()).take(count)
    match coding:
        case IndexCoding.BITMAP:
            data, _ = reader.stream((size + 7) // 8, (size + 7) // 8)
            sound = kernels.bitmap_to_indices(_words(data), start, size, indices)
        case IndexCoding.GAPS:
            length = reader.varint(3 * count)
            data, _ = reader.stream(length, length)
            sound = kernels.varints_to_indices(data, start, size, indices)
        case IndexCoding.RICE:
            k = reader.byte()
            if k > MAX_RICE:
                raise WireError(f"Rice parameter {k} is out of range; it can be {MAX_RICE} at most")
            sound = kernels.rice_decode(reader.rest(), k, start, size, indices)
            reader.raw(max(sound, 0))
    if sound < 0:
        raise WireError(f"the indices of a chunk are not {count:,} rising ones below {size:,}")
    return coding, indices


def skip_index(reader: Reader, start: int, size: int) -> int | None:
    """Go behind a chunk's indices; how many there are, None where only reading them tells where they end."""
    code = reader.byte()
    if code == IndexCoding.EMPTY:
        return 0
    if code == IndexCoding.ALL:
        return size
    if code not in (IndexCoding.BITMAP, IndexCoding.GAPS):
        return None
    count = reader.varint(size - 1)
    reader.skip_stream((size + 7) // 8 if code == IndexCoding.BITMAP else reader.varint(3 * count))
    return count


Option = tuple[IndexCoding, bytes, "bytes | Bytes"]
"""A coding, and what follows the count in two parts."""


def _bitmap(writer: Writer, indices: Indices, start: int, size: int) -> Option:
    words = np.empty((size + 63) // 64, np.uint64)
    kernels.indices_to_bitmap(indices, start, words)
    data = words.astype("<u8", copy=False).view(np.uint8)[: (size + 7) // 8]
    return IndexCoding.BITMAP, *writer.compressed(data)


def _words(data: Bytes) -> NDArray[np.uint64]:
    padded = np.zeros((data.size + 7) // 8 * 8, np.uint8)
    padded[: data.size] = data
    return padded.view("<u8").astype(np.uint64, copy=False)


def _gaps(writer: Writer, indices: Indices, start: int) -> Option:
    data = np.empty(3 * indices.size, np.uint8)
    data = data[: kernels.gaps_to_varints(indices, start, data)]
    header, body = writer.compressed(data)
    return IndexCoding.GAPS, varint(data.size) + header, body


def _rice(indices: Indices, start: int, size: int) -> Option:
    bits, k = kernels.best_rice(indices, start, size)
    out = np.empty((bits + 7) // 8, np.uint8)
    kernels.rice_encode(indices, start, k, out)
    return IndexCoding.RICE, k.to_bytes(1), out
