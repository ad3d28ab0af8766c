"""The loops of the wire format, compiled. Decoders return a negative number for input that is not exactly right."""

from typing import Any

import numpy as np

from fedsparq.compiled import count_ones, jit, trailing_zeros

_LOW_7 = np.uint32(0x7F)
_MORE = np.uint32(0x80)


@jit
def gaps_to_varints(places: Any, start: int, out: Any) -> int:
    """Each place as the number of places skipped since the one before, seven bits a byte; returns the length."""
    n = 0
    expected = np.uint32(start)
    for i in range(places.size):
        gap = places[i] - expected
        expected = places[i] + np.uint32(1)
        while gap > _LOW_7:
            out[n] = (gap & _LOW_7) | _MORE
            gap >>= np.uint32(7)
            n += 1
        out[n] = gap
        n += 1
    return n


@jit
def varints_to_places(data: Any, start: int, size: int, places: Any) -> int:
    """Undo `gaps_to_varints`; 0, or -1 unless exactly `places.size` of `size` places come out of all the data."""
    n = 0
    place = np.int64(start) - 1
    for i in range(places.size):
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
        place += gap + 1
        places[i] = place
    return 0 if n == data.size and place < start + size else -1


@jit
def rice_bits(places: Any, start: int, k: int) -> int:
    """How many bits `rice_encode` takes."""
    bits = int(places.size) * (k + 1)
    previous = np.int64(start) - 1
    for i in range(places.size):
        bits += int((np.int64(places[i]) - previous - 1) >> k)
        previous = np.int64(places[i])
    return bits


@jit
def rice_parameter(places: Any, start: int, low: int, high: int) -> int:
    """The k from `low` to `high` that takes the fewest bits."""
    best = low
    for k in range(low + 1, high + 1):
        if rice_bits(places, start, k) < rice_bits(places, start, best):
            best = k
    return best


@jit
def rice_encode(places: Any, start: int, k: int, out: Any) -> None:
    """Each gap as gap >> k in unary (ones, then a zero) and its k low bits, from the lowest bit of each byte up."""
    out[:] = 0
    at = 0
    previous = np.int64(start) - 1
    for i in range(places.size):
        gap = np.int64(places[i]) - previous - 1
        previous = np.int64(places[i])
        for _ in range(gap >> k):
            out[at >> 3] |= np.uint8(1 << (at & 7))
            at += 1
        at += 1
        for j in range(k):
            out[at >> 3] |= np.uint8(((gap >> j) & 1) << (at & 7))
            at += 1


@jit
def rice_decode(data: Any, k: int, start: int, size: int, places: Any) -> int:
    """Undo `rice_encode`; returns how many bytes were read, or -1."""
    end = data.size * 8
    at = 0
    place = np.int64(start) - 1
    for i in range(places.size):
        gap = np.int64(0)
        while at < end and (data[at >> 3] >> (at & 7)) & 1:
            gap += np.int64(1) << k
            at += 1
            if gap >= size:
                return -1
        at += 1
        if at + k > end:
            return -1
        for j in range(k):
            gap |= np.int64((data[at >> 3] >> (at & 7)) & 1) << j
            at += 1
        place += gap + 1
        if place >= start + size:
            return -1
        places[i] = place
    while at & 7:
        if (data[at >> 3] >> (at & 7)) & 1:
            return -1
        at += 1
    return at >> 3


@jit
def places_to_bitmap(places: Any, start: int, words: Any) -> None:
    words[:] = 0
    for i in range(places.size):
        place = np.uint64(places[i] - np.uint32(start))
        words[place >> np.uint64(6)] |= np.uint64(1) << (place & np.uint64(63))


@jit
def bitmap_to_places(words: Any, start: int, size: int, places: Any) -> int:
    """0, or -1 unless exactly `places.size` bits are one, all below `size`."""
    ones = np.int64(0)
    for w in range(words.size):
        ones += np.int64(count_ones(words[w]))
    if ones != places.size or (size & 63 and words[-1] >> np.uint64(size & 63)):
        return -1
    n = 0
    for w in range(words.size):
        word = words[w]
        first = np.uint64(start + 64 * w)
        while word != 0:
            places[n] = first + trailing_zeros(word)
            n += 1
            word &= word - np.uint64(1)
    return 0


@jit
def split_halves(halves: Any, high: Any, low: Any) -> None:
    """Move the sign of a float16 to its bottom, and part the two bytes: the exponent is in the high one."""
    for i in range(halves.size):
        turned = (np.uint32(halves[i]) << np.uint32(1)) | (np.uint32(halves[i]) >> np.uint32(15))
        high[i] = turned >> np.uint32(8)
        low[i] = turned


@jit
def join_halves(high: Any, low: Any, halves: Any) -> int:
    """Undo `split_halves`; 0, or -1 if a value is infinite or not a number."""
    largest = np.uint16(0)
    for i in range(halves.size):
        turned = np.uint16((np.uint16(high[i]) << np.uint16(8)) | np.uint16(low[i]))
        halves[i] = np.uint16(turned >> np.uint16(1)) | np.uint16(turned << np.uint16(15))
        largest = max(largest, turned)
    return -1 if largest >= 0xF800 else 0


@jit
def pack(values: Any, width: int, out: Any) -> None:
    """Values of `width` bits (1 to 8) one after the other, from the lowest bit of each byte up."""
    out[:] = 0
    for i in range(values.size):
        at = i * width
        shifted = np.uint32(values[i]) << np.uint32(at & 7)
        out[at >> 3] |= np.uint8(shifted & np.uint32(0xFF))
        if (at & 7) + width > 8:
            out[(at >> 3) + 1] |= np.uint8(shifted >> np.uint32(8))


@jit
def unpack(data: Any, width: int, values: Any) -> int:
    """Undo `pack`; 0, or -1 if a bit behind the last value is one."""
    mask = np.uint32((1 << width) - 1)
    for i in range(values.size):
        at = i * width
        pair = np.uint32(data[at >> 3]) >> np.uint32(at & 7)
        if (at & 7) + width > 8:
            pair |= np.uint32(data[(at >> 3) + 1]) << np.uint32(8 - (at & 7))
        values[i] = pair & mask
    used = (values.size * width) & 7
    return -1 if used and data[-1] >> used else 0
