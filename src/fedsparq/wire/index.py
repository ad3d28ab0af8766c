"""The indices of one chunk, in the shortest of all codings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.payload.selection import Indices
from fedsparq.payload.streams import Bytes, Reader, Writer, varint
from fedsparq.wire import index_kernels as kernels
from fedsparq.wire.index_kernels import MAX_RICE

BITMAP_MIN_DENSITY = 0.15
GAPS_MAX_DENSITY = 0.30
RICE_MAX_DENSITY = 0.04
RICE_MAX_COUNT = 4096


CODINGS = ("empty", "all", "bitmap", "gaps", "rice", "seeded")
"""The index codings by name; their codes count from 0."""
EMPTY, ALL, BITMAP, GAPS, RICE, SEEDED = range(len(CODINGS))


def write_index(writer: Writer, indices: Indices, start: int, size: int) -> None:
    """Write which coordinates of the chunk from `start` on, of length `size`, are sent."""
    if indices.size in (0, size):
        writer.byte(ALL if indices.size else EMPTY)
        return
    options = []
    if indices.size >= BITMAP_MIN_DENSITY * size:
        options.append(_bitmap(writer, indices, start, size))
    if indices.size <= GAPS_MAX_DENSITY * size:
        options.append(_gaps(writer, indices, start))
    if indices.size <= max(RICE_MAX_DENSITY * size, RICE_MAX_COUNT):
        options.append(_rice(indices, start, size))
    coding, header, body = min(options, key=lambda option: len(option[1]) + len(option[2]))
    writer.byte(coding)
    writer.varint(indices.size)
    writer.raw(header)
    writer.raw(body)


class IndexBuffer:
    """Memory for the indices of all chunks in sequence, so that they need not be concatenated."""

    def __init__(self, size: int = 0) -> None:
        self._memory, self._used = np.empty(size, np.uint32), 0

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


def read_index(reader: Reader, start: int, size: int, buffer: IndexBuffer) -> tuple[int, Indices | range]:
    """Read the coding of a chunk's indices, and these; none if seeded ones are meant."""
    coding = reader.byte()
    if coding == ALL:
        return ALL, range(start, start + size)
    if coding in (EMPTY, SEEDED):
        return coding, range(0)
    if coding > RICE:
        raise WireError(f"index coding {coding} is not one of FSQ1's; the message is damaged or of a later version")
    count = reader.varint(size - 1)
    if count == 0:
        raise WireError("a chunk lists no indices; it should say that it is empty")
    indices = buffer.take(count)
    if coding == BITMAP:
        data, _ = reader.stream((size + 7) // 8, (size + 7) // 8)
        sound = kernels.bitmap_to_indices(_words(data), start, size, indices)
    elif coding == GAPS:
        length = reader.varint(3 * count)
        data, _ = reader.stream(length, length)
        sound = kernels.varints_to_indices(data, start, size, indices)
    else:
        k = reader.byte()
        if k > MAX_RICE:
            raise WireError(f"Rice parameter {k} is out of range; it can be {MAX_RICE} at most")
        sound = kernels.rice_decode(reader.rest(), k, start, size, indices)
        reader.raw(max(sound, 0))
    if sound < 0:
        raise WireError(f"the indices of a chunk are not {count:,} increasing ones below {size:,}")
    return coding, indices


Option = tuple[int, bytes, "bytes | Bytes"]
"""A coding, and what follows the count in two parts."""


def _bitmap(writer: Writer, indices: Indices, start: int, size: int) -> Option:
    words = np.empty((size + 63) // 64, np.uint64)
    kernels.indices_to_bitmap(indices, start, words)
    data = words.astype("<u8", copy=False).view(np.uint8)[: (size + 7) // 8]
    return BITMAP, *writer.compressed(data)


def _words(data: Bytes) -> NDArray[np.uint64]:
    padded = np.zeros((data.size + 7) // 8 * 8, np.uint8)
    padded[: data.size] = data
    return padded.view("<u8").astype(np.uint64, copy=False)


def _gaps(writer: Writer, indices: Indices, start: int) -> Option:
    data = np.empty(3 * indices.size, np.uint8)
    data = data[: kernels.gaps_to_varints(indices, start, data)]
    header, body = writer.compressed(data)
    return GAPS, varint(data.size) + header, body


def _rice(indices: Indices, start: int, size: int) -> Option:
    bits, k = kernels.best_rice(indices, start, size)
    out = np.empty((bits + 7) // 8, np.uint8)
    kernels.rice_encode(indices, start, k, out)
    return RICE, k.to_bytes(1), out
