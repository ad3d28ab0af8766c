"""The loops of the index codings, compiled. Decoders return a negative number for input that is not exactly right."""

import math
from typing import Any

import numpy as np

from fedsparq.compiled import count_ones, jit, trailing_zeros

MAX_RICE = 20
"""The largest parameter of a Rice code."""
_LOW_7 = np.uint32(0x7F)
_MORE = np.uint32(0x80)
_BLOCK = 256
"""Gaps that are tried together: nearly all are below 128, a byte each."""
_ENOUGH = 32
"""With fewer bits at hand than this, further ones are read."""
_BYTE = np.uint64(0xFF)


@jit
def _gaps_of_one_byte(indices: Any, out: Any) -> Any:
    """Write the gaps before all indices but the first, a byte each; return all or-ed: above 127 one did not fit."""
    bits = np.uint32(0)
    for i in range(out.size):
        gap = indices[i + 1] - indices[i] - np.uint32(1)
        bits |= gap
        out[i] = gap
    return bits


@jit
def gaps_to_varints(indices: Any, start: int, out: Any) -> int:
    """Write each index as the gap to the one before, seven bits per byte; return the length."""
    n = 0
    expected = np.uint32(start)
    for first in range(0, indices.size, _BLOCK):
        block = indices[first : first + _BLOCK]
        gap = block[0] - expected
        if gap | _gaps_of_one_byte(block, out[n + 1 : n + block.size]) <= _LOW_7:
            out[n] = gap
            n += block.size
        else:
            for i in range(block.size):
                gap = block[i] - expected
                expected = block[i] + np.uint32(1)
                while gap > _LOW_7:
                    out[n] = (gap & _LOW_7) | _MORE
                    gap >>= np.uint32(7)
                    n += 1
                out[n] = gap
                n += 1
        expected = block[-1] + np.uint32(1)
    return n


@jit
def _sum_of_bytes(data: Any) -> Any:
    """Return the sum of bytes; -1 if one is above 127."""
    bits = np.uint8(0)
    total = np.int64(0)
    for i in range(data.size):
        bits |= data[i]
        total += np.int64(data[i])
    return total if bits < 0x80 else -1


@jit
def _skip(data: Any, following: Any, indices: Any) -> None:
    """Read indices from gaps of one byte, from the coordinate `following` on."""
    for i in range(data.size):
        indices[i] = following + data[i]
        following += np.uint32(data[i]) + np.uint32(1)


@jit
def varints_to_indices(data: Any, start: int, size: int, indices: Any) -> int:
    """Undo `gaps_to_varints`; 0, or -1 unless exactly `indices.size` of `size` come out of all the data."""
    n = i = 0
    following = np.int64(start)
    while i < indices.size:
        count = min(_BLOCK, indices.size - i, data.size - n)
        skipped = _sum_of_bytes(data[n : n + count])
        if skipped >= 0:
            if count == 0 or following + skipped + count > start + size:
                return -1
            _skip(data[n : n + count], np.uint32(following), indices[i : i + count])
            following += skipped + count
            n += count
            i += count
            continue
        for _ in range(count):
            if n == data.size:
                return -1
            gap = np.int64(data[n])
            n += 1
            if gap >= 0x80:
                gap &= 0x7F
                shift = 7
                while True:
                    if n == data.size or shift > 21:
                        return -1
                    byte = np.int64(data[n])
                    n += 1
                    gap |= (byte & 0x7F) << shift
                    shift += 7
                    if byte < 0x80:
                        break
                if byte == 0:
                    return -1
            following += gap + 1
            if following > start + size:
                return -1
            indices[i] = following - 1
            i += 1
    return 0 if n == data.size else -1


@jit
def best_rice(indices: Any, start: int, size: int) -> Any:
    """Return the fewest bits that `rice_encode` takes, and its parameter for them: about the mean gap's."""
    mean_gap = max((size - indices.size) / (indices.size + 1), 1e-9)
    guess = max(0, round(math.log2(mean_gap * math.log(2) + 1e-9)))
    best, best_k = np.int64(-1), 0
    for k in range(max(0, guess - 1), min(MAX_RICE, guess + 1) + 1):
        bits = np.int64(indices.size) * (k + 1)
        previous = np.int64(start) - 1
        for i in range(indices.size):
            bits += (np.int64(indices[i]) - previous - 1) >> k
            previous = np.int64(indices[i])
        if best < 0 or bits < best:
            best, best_k = bits, k
    return best, best_k


@jit
def rice_encode(indices: Any, start: int, k: int, out: Any) -> None:
    """Write each gap as gap >> k in unary (ones, then a zero) and its k low bits, lowest bit of each byte first."""
    at = 0
    word, held = np.uint64(0), 0
    previous = np.int64(start) - 1
    for i in range(indices.size):
        gap = np.int64(indices[i]) - previous - 1
        previous = np.int64(indices[i])
        ones: Any = gap >> k
        while ones > 0:
            some: Any = min(ones, 32)
            word |= ((np.uint64(1) << np.uint64(some)) - np.uint64(1)) << np.uint64(held)
            held += some
            ones -= some
            while held >= 8:
                out[at] = word & _BYTE
                word >>= np.uint64(8)
                held -= 8
                at += 1
        low = np.uint64(gap) & ((np.uint64(1) << np.uint64(k)) - np.uint64(1))
        word |= low << np.uint64(held + 1)
        held += k + 1
        while held >= 8:
            out[at] = word & _BYTE
            word >>= np.uint64(8)
            held -= 8
            at += 1
    if held:
        out[at] = word & _BYTE


@jit
def _four_bytes(data: Any, first: int) -> Any:
    word = np.uint64(0)
    for i in range(4):
        word |= np.uint64(data[first + i]) << np.uint64(8 * i)
    return word


@jit
def rice_decode(data: Any, k: int, start: int, size: int, indices: Any) -> int:
    """Undo `rice_encode`; returns how many bytes were read, or -1."""
    read = 0
    word, held = np.uint64(0), 0
    index = np.int64(start) - 1
    for i in range(indices.size):
        gap = np.int64(0)
        while True:
            if held < _ENOUGH and read + 4 <= data.size:
                word |= _four_bytes(data, read) << np.uint64(held)
                held += 32
                read += 4
            while held < _ENOUGH and read < data.size:
                word |= np.uint64(data[read]) << np.uint64(held)
                held += 8
                read += 1
            ones: Any = min(np.int64(trailing_zeros(~word)), np.int64(held))
            gap += ones << k
            if gap >= size:
                return -1
            if ones < held:
                break
            if read == data.size:
                return -1
            word, held = np.uint64(0), 0
        word = word >> np.uint64(ones) >> np.uint64(1)
        held -= ones + 1
        while held < k and read < data.size:
            word |= np.uint64(data[read]) << np.uint64(held)
            held += 8
            read += 1
        if held < k:
            return -1
        gap |= np.int64(word & ((np.uint64(1) << np.uint64(k)) - np.uint64(1)))
        word >>= np.uint64(k)
        held -= k
        index += gap + 1
        if index >= start + size:
            return -1
        indices[i] = index
    while held >= 8:
        held -= 8
        read -= 1
    return -1 if word & ((np.uint64(1) << np.uint64(held)) - np.uint64(1)) else read


@jit
def indices_to_bitmap(indices: Any, start: int, words: Any) -> None:
    words[:] = 0
    for i in range(indices.size):
        index = np.uint64(indices[i] - np.uint32(start))
        words[index >> np.uint64(6)] |= np.uint64(1) << (index & np.uint64(63))


@jit
def bitmap_to_indices(words: Any, start: int, size: int, indices: Any) -> int:
    """Return 0, or -1 unless exactly `indices.size` bits are one, all below `size`."""
    ones = np.int64(0)
    for w in range(words.size):
        ones += np.int64(count_ones(words[w]))
    if ones != indices.size or (size & 63 and words[-1] >> np.uint64(size & 63)):
        return -1
    n = 0
    for w in range(words.size):
        word = words[w]
        first = np.uint64(start + 64 * w)
        while word != 0:
            indices[n] = first + trailing_zeros(word)
            n += 1
            word &= word - np.uint64(1)
    return 0
