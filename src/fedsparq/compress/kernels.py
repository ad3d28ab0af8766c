"""The loops of compression, compiled; each runs on any CPU.

A layer is a float32 slice `c` that starts at place `base` of the whole vector. A selector marks what it keeps in a
bitmap (bit j of word w stands for coordinate 64 w + j), or gives a limit that the magnitudes kept must reach: then the
bitmap is empty, and its words are made when they are needed. A quantizer walks the words, lists places in the whole
vector (uint32, rising) with their values, and takes what will be decoded away from `c`: the residual is what is left.
"""

from typing import Any

import numpy as np

from fedsparq.compiled import at_least_mask, count_ones, jit, jit_reordering_sums, trailing_zeros

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SIGN = np.uint32(0x80000000)
_HALF_SIGN = np.uint32(0x8000)
_HALF_MAX_BITS = np.uint32(0x477FE000)  # 65504 as a float32
_HALF_NORMAL_BITS = np.uint32(0x38800000)  # 2**-14 as a float32, the smallest normal float16
_REBIAS = np.uint32(0x38000000)  # the exponents of float32 and float16 differ by 112
_DROPPED = np.uint32(13)  # mantissa bits that float32 has beyond float16
_DROPPED_MASK = np.uint32(0x1FFF)
_HALF = np.float32(0.5)
_HALF_BITS = np.uint32(0x3F000000)  # 0.5 as a float32: its last bit is worth 2**-24, as that of a subnormal float16

_BLOCK = 4096
"""Coordinates that are listed, rounded and written back together: few enough for a CPU's first cache."""
_STRIDE = 8
"""Places that are listed at a time, needed or not: a branch per place would be guessed wrong too often."""


@jit
def random_bits(seed: Any, index: Any) -> Any:
    """splitmix64: 64 random bits as a function of a seed and an index."""
    z = seed + (np.uint64(index) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@jit
def uniform(seed: Any, index: Any) -> Any:
    """A float64 in [0, 1)."""
    return np.float64(random_bits(seed, index) >> np.uint64(11)) * 2.0**-53


@jit_reordering_sums
def add(update: Any, residual: Any, c: Any) -> float:
    """c = update + residual; returns the sum of |c|, not finite if any of c is not."""
    total = 0.0
    for i in range(c.size):
        c[i] = update[i] + residual[i]
        total += abs(np.float64(c[i]))
    return total


@jit_reordering_sums
def copy(update: Any, c: Any) -> float:
    """c = update; returns the sum of |c|, not finite if any of c is not."""
    total = 0.0
    for i in range(c.size):
        c[i] = update[i]
        total += abs(np.float64(c[i]))
    return total


@jit
def at_least_word(bits: Any, start: int, limit: Any) -> Any:
    """A word of the bitmap that marks magnitudes of at least `limit`: the one for the 64 coordinates from `start`."""
    if start + 64 <= bits.size:
        return at_least_mask(bits, start, limit)
    word = np.uint64(0)
    for i in range(start, bits.size):
        word |= np.uint64((bits[i] & _MAGNITUDE) >= limit) << np.uint64(i - start)
    return word


@jit
def _marked(words: Any, bits: Any, limit: Any, w: int) -> Any:
    """A word of the bitmap; if there is no bitmap, of one that marks magnitudes of at least `limit`."""
    return words[w] if words.size else at_least_word(bits, 64 * w, limit)


@jit
def mark_at_least(c: Any, threshold: Any, words: Any) -> int:
    """Set the bitmap to |c| >= threshold (a float32, at least 0); returns how many are kept."""
    bits, limit = c.view(np.uint32), np.float32(threshold).view(np.uint32)
    kept = 0
    for w in range(words.size):
        words[w] = at_least_word(bits, 64 * w, limit)
        kept += int(count_ones(words[w]))
    return kept


@jit
def _list_block(words: Any, bits: Any, limit: Any, start: int, places: Any) -> int:
    """List what is marked from `start` on within one block, relative to it; returns how many."""
    n = 0
    for w in range(start // 64, (min(start + _BLOCK, bits.size) + 63) // 64):
        word = _marked(words, bits, limit, w)
        first = np.uint64(64 * w - start)
        count = int(count_ones(word))
        for listed in range(0, count, _STRIDE):
            for j in range(_STRIDE):
                places[np.uint64(n + listed + j)] = first + trailing_zeros(word)
                word &= word - np.uint64(1)
        n += count
    return n


@jit
def list_marked(words: Any, base: Any, positions: Any) -> None:
    """Write the places of the bitmap's ones, moved by base."""
    n = 0
    for w in range(words.size):
        word = words[w]
        start = np.uint64(base + 64 * w)
        while word != 0:
            positions[n] = start + trailing_zeros(word)
            n += 1
            word &= word - np.uint64(1)


@jit
def largest_threshold(c: Any, count: int) -> Any:
    """The magnitude of the count-th largest of |c| (count >= 1), by counting its upper and then its lower bits."""
    bits = c.view(np.uint32)
    histogram = np.zeros(1 << 16, np.int64)
    for i in range(bits.size):
        histogram[(bits[i] & _MAGNITUDE) >> np.uint32(15)] += 1
    above = 0
    upper = histogram.size - 1
    while above + histogram[upper] < count:
        above += histogram[upper]
        upper -= 1
    histogram[:] = 0
    for i in range(bits.size):
        magnitude = bits[i] & _MAGNITUDE
        if magnitude >> np.uint32(15) == np.uint32(upper):
            histogram[magnitude & np.uint32(0x7FFF)] += 1
    lower = 0x7FFF
    while above + histogram[lower] < count:
        above += histogram[lower]
        lower -= 1
    return np.uint32((upper << 15) | lower).view(np.float32)


@jit
def random_positions(seed: Any, size: int, count: int, positions: Any) -> None:
    """`count` of `size` places, all sets equally likely: one pass, each place kept with chance wanted / left."""
    n = 0
    for i in range(size):
        draw = (random_bits(seed, i) >> np.uint64(32)) * np.uint64(size - i)
        if (draw >> np.uint64(32)) < np.uint64(count - n):
            positions[n] = i
            n += 1
            if n == count:
                return


@jit
def mark_places(positions: Any, base: int, words: Any) -> None:
    """Set the bitmap to these places."""
    words[:] = 0
    for n in range(positions.size):
        i = np.uint64(positions[n] - base)
        words[np.int64(i >> np.uint64(6))] |= np.uint64(1) << (i & np.uint64(63))


@jit
def half_to_float(half: Any) -> Any:
    """The float32 of finite float16 bits, sign included."""
    sign = (np.uint32(half) & _HALF_SIGN) << np.uint32(16)
    magnitude = (np.uint32(half) & np.uint32(0x7FFF)) << _DROPPED
    return np.uint32(sign | magnitude).view(np.float32) * np.float32(2.0**112)


@jit
def _nearest_half(bits: Any) -> Any:
    """float16 bits of float32 bits: nearest with ties to even, saturating at 65504. Without a branch."""
    magnitude = np.uint32(min(np.uint32(bits & _MAGNITUDE), _HALF_MAX_BITS))
    odd = (magnitude >> _DROPPED) & np.uint32(1)
    normal = np.uint32(magnitude - _REBIAS + np.uint32(0xFFF) + odd) >> _DROPPED
    subnormal = np.float32(magnitude.view(np.float32) + _HALF).view(np.uint32) - _HALF_BITS
    half = normal if magnitude >= _HALF_NORMAL_BITS else subnormal
    return half | ((bits & _SIGN) >> np.uint32(16))


@jit
def _random_half(bits: Any, random: Any) -> Any:
    """float16 bits of float32 bits: up with the chance that makes the mean exact, saturating at 65504."""
    magnitude = np.uint32(min(np.uint32(bits & _MAGNITUDE), _HALF_MAX_BITS))
    if magnitude >= _HALF_NORMAL_BITS:
        carry = np.uint32(random >> np.uint64(32)) & _DROPPED_MASK if magnitude < _HALF_MAX_BITS else np.uint32(0)
        half = np.uint32(magnitude - _REBIAS + carry) >> _DROPPED
    else:
        draw = np.float64(random >> np.uint64(11)) * 2.0**-53
        half = np.uint32(np.floor(np.float64(magnitude.view(np.float32)) * 2.0**24 + draw))
    return half | ((bits & _SIGN) >> np.uint32(16))


@jit
def take_halves(
    c: Any, words: Any, limit: Any, base: Any, stochastic: bool, seed: Any, positions: Any, halves: Any
) -> int:
    """Round the marked of c to float16 bits, and take them away from c; returns how many."""
    bits, limit_bits = c.view(np.uint32), np.float32(limit).view(np.uint32)
    places = np.empty(_BLOCK + _STRIDE, np.uint32)
    left = np.empty(_BLOCK, np.float32)
    left_bits = left.view(np.uint32)
    done = 0
    for start in range(0, c.size, _BLOCK):
        count = _list_block(words, bits, limit_bits, start, places)
        block, first = c[start : start + _BLOCK], np.uint32(np.uint64(base) + np.uint64(start))
        sent, rounded = positions[done : done + count], halves[done : done + count]
        for n in range(count):
            sent[n] = first + places[n]
            left[n] = block[places[n]]
        if stochastic:
            for n in range(count):
                rounded[n] = _random_half(left_bits[n], random_bits(seed, np.uint64(sent[n])))
        else:
            for n in range(count):
                rounded[n] = _nearest_half(left_bits[n])
        for n in range(count):
            left[n] -= half_to_float(rounded[n])
        for n in range(count):
            block[places[n]] = left[n]
        done += count
    return done


@jit
def take_floats(c: Any, words: Any, limit: Any, base: Any, positions: Any, values: Any) -> int:
    """Copy the marked of c as they are, and take them away from c; returns how many."""
    bits, limit_bits = c.view(np.uint32), np.float32(limit).view(np.uint32)
    places = np.empty(_BLOCK + _STRIDE, np.uint32)
    done = 0
    for start in range(0, c.size, _BLOCK):
        count = _list_block(words, bits, limit_bits, start, places)
        block, first = c[start : start + _BLOCK], np.uint32(np.uint64(base) + np.uint64(start))
        for n in range(count):
            positions[done + n] = first + places[n]
            values[done + n] = block[places[n]]
        for n in range(count):
            block[places[n]] = np.float32(0)
        done += count
    return done


@jit
def stochastic_levels(c: Any, step: Any, levels: int, base: Any, seed: Any, signed: Any) -> int:
    """Round every |c| / step up or down at random with mean |c| / step; returns how many are not zero."""
    kept = 0
    for i in range(c.size):
        level = min(int(np.floor(np.float64(abs(c[i])) / step + uniform(seed, base + i))), levels)
        signed[i] = -level if c[i] < 0 else level
        kept += int(level > 0)
    return kept


@jit
def halves_to_floats(halves: Any, out: Any) -> None:
    for n in range(halves.size):
        out[n] = half_to_float(halves[n])


@jit
def add_scaled(accumulator: Any, values: Any, weight: Any) -> None:
    for i in range(values.size):
        accumulator[i] += weight * values[i]


@jit
def scatter_add(accumulator: Any, positions: Any, values: Any, weight: Any) -> None:
    for n in range(positions.size):
        accumulator[positions[n]] += weight * values[n]


@jit
def scatter_add_halves(accumulator: Any, positions: Any, halves: Any, weight: Any) -> None:
    for n in range(positions.size):
        accumulator[positions[n]] += weight * half_to_float(halves[n])
