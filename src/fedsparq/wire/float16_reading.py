"""Reading layers of float16, compiled: where the chunks of a message are, then what is in them. The message may be
hostile; functions return a negative number for whatever they do not know or is not exactly right.
"""

from typing import Any

import numpy as np

from fedsparq.compiled import fetch_add, jit
from fedsparq.payload import Float16Values
from fedsparq.payload.kernels import join_halves
from fedsparq.payload.libzstd import bytes_at, unpack
from fedsparq.wire.chunks import CHUNK
from fedsparq.wire.index import IndexCoding
from fedsparq.wire.index_kernels import MAX_RICE, bitmap_to_indices, rice_decode, varints_to_indices

_CODE = Float16Values.code
_EMPTY, _ALL, _BITMAP, _GAPS, _RICE, *_ = map(int, IndexCoding)

(START, SIZE, CODING, COUNT, DONE, INDEX, INDEX_ZIPPED, INDEX_SIZE, HIGH, HIGH_ZIPPED, LOW, LOW_ZIPPED) = range(12)
"""The columns of a table of chunks: its coordinates, how their indices are coded, how many are sent, and how many
before it; for each of its three streams where it begins, and the length of its zstd frame or 0."""
COLUMNS = 12
TOO_MANY = -2
"""Rice codes are of more indices than there is room for."""


@jit
def find_chunks(message: int, at: int, end: int, bounds: Any, table: Any, ends: Any, indices: Any) -> int:
    """Fill the table; returns where the layers end in the message. `ends` takes how many indices come before each
    layer's end. Only reading Rice codes tells where they end: their indices are already put where they belong."""
    data = bytes_at(message, end)
    chunk = done = 0
    for layer in range(bounds.size - 1):
        if at >= end or data[at] != _CODE:
            return -1
        at += 1
        for start in range(bounds[layer], bounds[layer + 1], CHUNK):
            row = table[chunk]
            row[:] = 0
            row[START], row[SIZE], row[DONE] = start, min(CHUNK, bounds[layer + 1] - start), done
            at = _find_index(data, at, row, indices)
            if at < 0:
                return at
            count = row[COUNT]
            if count:
                row[HIGH_ZIPPED], row[HIGH], at = _find_stream(data, at, count)
                row[LOW_ZIPPED], row[LOW], at = _find_stream(data, at, count)
                if at < 0:
                    return -1
            done += count
            chunk += 1
        ends[layer] = done
    return at


@jit
def _find_index(data: Any, at: int, row: Any, indices: Any) -> int:
    """The columns about a chunk's indices; returns where its values begin."""
    if at >= data.size:
        return -1
    size, coding = row[SIZE], np.int64(data[at])
    row[CODING] = coding
    at += 1
    if coding == _EMPTY:
        return at
    if coding == _ALL:
        row[COUNT] = size
        return at
    count, at = _varint(data, at, size - 1)
    if at < 0 or count == 0:
        return -1
    row[COUNT] = count
    if coding == _BITMAP:
        row[INDEX_SIZE] = (size + 7) // 8
    elif coding == _GAPS:
        row[INDEX_SIZE], at = _varint(data, at, 3 * count)
    elif coding == _RICE:
        if at >= data.size or data[at] > MAX_RICE:
            return -1
        k: Any = np.int64(data[at])
        done = row[DONE]
        if done + count > indices.size:
            return TOO_MANY
        read = rice_decode(data[at + 1 :], k, row[START], size, indices[done : done + count])
        return at + 1 + read if read >= 0 else -1
    else:
        return -1
    row[INDEX_ZIPPED], row[INDEX], at = _find_stream(data, at, row[INDEX_SIZE])
    return at


@jit
def _varint(data: Any, at: int, most: int) -> Any:
    """A number of at most `most`, below 2^28, and where it ends: negative if it is not right."""
    value = np.int64(0)
    for shift in range(0, 28, 7):
        if at < 0 or at >= data.size:
            return value, -1
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, -1 if value > most or (byte == 0 and shift > 0) else at
    return value, -1


@jit
def _find_stream(data: Any, at: int, size: int) -> Any:
    """The length of a stream's zstd frame or 0, where the bytes begin, and where they end: negative if not there."""
    zipped, begin = _varint(data, at, max(size - 1, 0))
    end = begin + (zipped if zipped else size)
    return zipped, begin, end if begin >= 0 and end <= data.size else -1


@jit
def scratch_size(table: Any) -> int:
    """How many bytes `read_chunks` needs for itself."""
    most = 0
    for chunk in range(table.shape[0]):
        row = table[chunk]
        most = max(most, _padded(row[INDEX_SIZE]), 2 * row[COUNT])
    return most


@jit
def _padded(size: int) -> int:
    return (size + 7) // 8 * 8


@jit
def read_chunks(
    message: int, end: int, table: Any, order: Any, counter: Any, unpacker: Any, scratch: Any, indices: Any, halves: Any
) -> int:
    """Read one chunk after the other that no other thread has taken; indices only where there is an array for them.
    Returns 0, or -1: then nothing of the message is sound."""
    data = bytes_at(message, end)
    while True:
        number = fetch_add(counter, 1)
        if number >= order.size:
            return 0
        if _read_chunk(data, table[order[number]], unpacker, scratch, indices, halves) < 0:
            counter[0] = order.size
            return -1


@jit
def _read_chunk(data: Any, row: Any, unpacker: Any, scratch: Any, indices: Any, halves: Any) -> int:
    if row[COUNT] == 0:
        return 0
    if _read_index(data, row, unpacker, scratch, indices) < 0:
        return -1
    return _read_values(data, row, unpacker, scratch, halves)


@jit
def _read_index(data: Any, row: Any, unpacker: Any, scratch: Any, indices: Any) -> int:
    start, size, coding, done = row[START], row[SIZE], row[CODING], row[DONE]
    if coding == _ALL and indices.size:
        for i in range(size):
            indices[done + i] = start + i
    if coding in (_ALL, _RICE):
        return 0
    own, length = indices[done : done + row[COUNT]], row[INDEX_SIZE]
    stream = _stream(data, row[INDEX], row[INDEX_ZIPPED], unpacker, scratch[:length])
    if stream.size != length:
        return -1
    if coding == _GAPS:
        return varints_to_indices(stream, start, size, own)
    words = scratch[: _padded(length)]
    if not row[INDEX_ZIPPED]:
        for i in range(length):
            words[i] = stream[i]
    words[length:] = 0
    return bitmap_to_indices(words.view(np.uint64), start, size, own)


@jit
def _read_values(data: Any, row: Any, unpacker: Any, scratch: Any, halves: Any) -> int:
    count, done = row[COUNT], row[DONE]
    high = _stream(data, row[HIGH], row[HIGH_ZIPPED], unpacker, scratch[:count])
    low = _stream(data, row[LOW], row[LOW_ZIPPED], unpacker, scratch[count : 2 * count])
    if high.size != count or low.size != count:
        return -1
    return join_halves(high, low, halves[done : done + count])


@jit
def _stream(data: Any, begin: int, zipped: int, unpacker: Any, room: Any) -> Any:
    """The bytes of a stream, as many as there is room for; nothing if they are not sound."""
    if not zipped:
        return data[begin : begin + room.size]
    return room if unpack(unpacker, data[begin : begin + zipped], room) == 0 else room[:0]
