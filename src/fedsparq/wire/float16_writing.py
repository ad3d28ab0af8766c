"""Writing layers of float16, compiled: chunk by chunk into memory that is long enough for any. The bytes are those of
`index.py` and `payload/float16.py`.
"""

from typing import Any

import numpy as np

from fedsparq.compiled import fetch_add, jit
from fedsparq.payload import Float16Values
from fedsparq.payload.float16 import REPEATED_FROM, SAMPLE
from fedsparq.payload.kernels import most_common, rise_within, split_halves
from fedsparq.payload.libzstd import bytes_at, most_packed, pack
from fedsparq.payload.streams import TINY
from fedsparq.wire.chunks import CHUNK
from fedsparq.wire.index import BITMAP_FROM, FEW, GAPS_TO, RICE_TO, IndexCoding
from fedsparq.wire.index_kernels import best_rice, gaps_to_varints, indices_to_bitmap, rice_encode

_CODE = Float16Values.code
_EMPTY, _ALL, _BITMAP, _GAPS, _RICE, *_ = map(int, IndexCoding)
_STRETCH = 1 << 18
"""A stretch has about so many coordinates at least."""
_NUMBERS = 32
"""More bytes than all codes, counts and lengths of a chunk."""

START, SIZE, IS_FIRST, COUNT, DONE, HALVES = range(6)
"""The columns of a table of chunks: its coordinates, whether it begins its layer, how many are sent and how many before
it; where its halves are in memory."""
COLUMNS = 6


@jit
def list_chunks(bounds: Any, indices: Any, all_sent: bool, addresses: Any, counts: Any, table: Any) -> int:
    """Fill the table, with one chunk for a layer without coordinates; returns 0, or -1 unless each layer has as many
    halves (`counts`, at `addresses`) as indices."""
    chunk = done = 0
    for layer in range(bounds.size - 1):
        start, end, first = bounds[layer], bounds[layer + 1], done
        while True:
            until = min(start + CHUNK, end)
            count = until - start if all_sent else _below(indices, done, until) - done
            row = table[chunk]
            row[START], row[SIZE], row[IS_FIRST] = start, until - start, start == bounds[layer]
            row[COUNT], row[DONE], row[HALVES] = count, done, addresses[layer] + 2 * (done - first)
            done += count
            chunk += 1
            start = until
            if start == end:
                break
        if done - first != counts[layer]:
            return -1
    return 0


@jit
def _below(indices: Any, first: int, limit: int) -> int:
    """Where among rising indices, from `first` on, those below a limit end."""
    last = indices.size
    while first < last:
        middle = (first + last) // 2
        if indices[middle] < limit:
            first = middle + 1
        else:
            last = middle
    return first


@jit
def plan_stretches(table: Any, stretches: Any, begins: Any, sizes: Any) -> Any:
    """Neighbouring chunks make a stretch: which is the first of each, where it begins in the memory for all, and how
    many coordinates it has. Returns how many stretches there are, and how much memory chunks need: all of them for what
    is written, one of them before it is packed."""
    number = room = most = 0
    sizes[0] = begins[0] = stretches[0] = 0
    for chunk in range(table.shape[0]):
        size, count = table[chunk, SIZE], table[chunk, COUNT]
        room += _NUMBERS + _most_listed(size, count) + 2 * count
        most = max(most, 3 * count, (size + 63) // 64 * 8)
        sizes[number] += size
        if sizes[number] >= _STRETCH or chunk == table.shape[0] - 1:
            number += 1
            stretches[number], begins[number], sizes[number] = chunk + 1, room, 0
    return number, room, most


@jit
def _most_listed(size: int, count: int) -> int:
    """The most bytes that `_write_index` takes but for numbers: those of the coding that it tries first. Gaps of 128 or
    more take further bytes, but there are few of them: all gaps add up to less than the size."""
    if count == 0 or count == size:
        return 0
    return (size + 7) // 8 if count >= BITMAP_FROM * size else count + size // 64


@jit
def write_stretches(
    table: Any,
    stretches: Any,
    begins: Any,
    ends: Any,
    order: Any,
    counter: Any,
    packer: Any,
    most: int,
    indices: Any,
    out: Any,
) -> int:
    """Write one stretch after the other that no other thread has taken, each from where it begins in `out` on; `ends`
    takes where it ends. Returns 0, or -1 for a payload that is not sound."""
    raw, frame = np.empty(most, np.uint8), np.empty(most_packed(most), np.uint8)
    while True:
        number = fetch_add(counter, 1)
        if number >= order.size:
            return 0
        stretch = order[number]
        at = begins[stretch]
        for chunk in range(stretches[stretch], stretches[stretch + 1]):
            at = _write_chunk(table[chunk], packer, raw, frame, indices, out, at)
            if at < 0:
                counter[0] = order.size
                return -1
        ends[stretch] = at


@jit
def _write_chunk(row: Any, packer: Any, raw: Any, frame: Any, indices: Any, out: Any, at: int) -> int:
    """Write a chunk from `at` on; returns its end, -1 for indices that are not sound."""
    start, size, count, done = row[START], row[SIZE], row[COUNT], row[DONE]
    if row[IS_FIRST]:
        out[at] = _CODE
        at += 1
    if size == 0:
        return at
    if count == 0 or count == size:
        out[at] = _ALL if count else _EMPTY
        at += 1
    else:
        at = _write_index(indices[done : done + count], start, size, packer, raw, frame, out, at)
    if at < 0 or count == 0:
        return at
    high, low = raw[:count], raw[count : 2 * count]
    split_halves(bytes_at(row[HALVES], 2 * count).view(np.uint16), high, low)
    at = _write_stream(high, _zipped(packer, high, frame), frame, out, at)
    sample = low[:SAMPLE]
    repeats = sample.size >= TINY and most_common(sample) * REPEATED_FROM > sample.size
    return _write_stream(low, _zipped(packer, low, frame) if repeats else 0, frame, out, at)


@jit
def _write_index(own: Any, start: int, size: int, packer: Any, raw: Any, frame: Any, out: Any, at: int) -> int:
    """The shortest coding of these indices, from `at` on; returns its end, or -1."""
    if not rise_within(own, start, start + size):
        return -1
    coding, count, end = at, own.size, -1
    at = _write_varint(count, out, at + 1)
    if count >= BITMAP_FROM * size:
        indices_to_bitmap(own, start, raw[: (size + 63) // 64 * 8].view(np.uint64))
        data = raw[: (size + 7) // 8]
        out[coding], end = _BITMAP, _write_stream(data, _zipped(packer, data, frame), frame, out, at)
    if count <= GAPS_TO * size:
        data = raw[: gaps_to_varints(own, start, raw)]
        zipped = _zipped(packer, data, frame)
        length = _varint_size(data.size) + _varint_size(zipped) + (zipped if zipped else data.size)
        if end < 0 or length < end - at:
            out[coding], end = _GAPS, _write_stream(data, zipped, frame, out, _write_varint(data.size, out, at))
    if count <= max(RICE_TO * size, FEW):
        bits, k = best_rice(own, start, size)
        length = 1 + (bits + 7) // 8
        if end < 0 or length < end - at:
            out[coding], out[at], end = _RICE, k, at + length
            rice_encode(own, start, k, out[at + 1 : end])
    return end


@jit
def _zipped(packer: Any, data: Any, frame: Any) -> int:
    """The length of the zstd frame of these bytes, if it is shorter than they are; else 0."""
    if data.size < TINY:
        return 0
    length: int = pack(packer, data, frame[: most_packed(data.size)])
    return length if 0 < length < data.size else 0


@jit
def _write_stream(data: Any, zipped: int, frame: Any, out: Any, at: int) -> int:
    """These bytes as they are, or so many of the frame; returns the end."""
    at = _write_varint(zipped, out, at)
    content = frame[:zipped] if zipped else data
    end: int = at + content.size
    _copy(content, out[at:end])
    return end


@jit
def _copy(data: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = data[i]


@jit
def _write_varint(value: int, out: Any, at: int) -> int:
    while value > 0x7F:
        out[at] = value & 0x7F | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@jit
def _varint_size(value: int) -> int:
    size = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size
