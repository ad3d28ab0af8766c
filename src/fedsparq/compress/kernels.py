"""The loops of compression, compiled; each runs on any CPU.

A layer is a float32 slice `c` that starts at place `base` of the whole vector. A selector marks what it keeps in a
bitmap (bit j of word w stands for coordinate 64 w + j). A quantizer walks the bitmap, lists places in the whole vector
(uint32, rising) with their values, and takes what will be decoded away from `c`: the residual is what is left.
"""

from typing import Any

import numpy as np

from fedsparq.compiled import at_least_mask, count_ones, jit, jit_reordering_sums, trailing_zeros

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SIGN = np.uint32(0x80000000)
_HALF_SIGN = np.uint32(0x8000)
_HALF_MAX = np.uint32(0x7BFF)
_HALF_MAX_BITS = np.uint32(0x477FE000)  # 65504 as a float32
_HALF_NORMAL_BITS = np.uint32(0x38800000)  # 2**-14 as a float32, the smallest normal float16
_REBIAS = np.uint32(0x38000000)  # the exponents of float32 and float16 differ by 112
_DROPPED = np.uint32(13)  # mantissa bits that float32 has beyond float16
_DROPPED_MASK = np.uint32(0x1FFF)


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
def mark_at_least(c: Any, threshold: Any, words: Any) -> int:
    """Set the bitmap to |c| >= threshold (a float32, at least 0); returns how many are kept."""
    bits = c.view(np.uint32)
    limit = np.float32(threshold).view(np.uint32)
    kept = 0
    whole = bits.size // 64
    for w in range(whole):
        words[w] = at_least_mask(bits, 64 * w, limit)
        kept += int(count_ones(words[w]))
    for w in range(whole, words.size):
        word = np.uint64(0)
        for i in range(64 * w, bits.size):
            word |= np.uint64((bits[i] & _MAGNITUDE) >= limit) << np.uint64(i - 64 * w)
        words[w] = word
        kept += int(count_ones(word))
    return kept


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
def _round_half(bits: Any, magnitude: Any, stochastic: bool, random: Any) -> Any:
    """float16 bits, without sign, of a magnitude given also as float32 bits; saturating at 65504.

    Nearest with ties to even, or up with the chance that makes the mean exact.
    """
    if bits >= _HALF_MAX_BITS:
        return _HALF_MAX
    if bits >= _HALF_NORMAL_BITS:
        if stochastic:
            carry = np.uint32(random >> np.uint64(32)) & _DROPPED_MASK
        else:
            carry = np.uint32(0xFFF) + ((bits >> _DROPPED) & np.uint32(1))
        return (bits - _REBIAS + carry) >> _DROPPED
    if stochastic:
        return np.uint32(np.floor(np.float64(magnitude) * 2.0**24 + np.float64(random >> np.uint64(11)) * 2.0**-53))
    return np.uint32(np.rint(magnitude * np.float32(2.0**24)))


@jit
def take_halves(c: Any, words: Any, base: Any, stochastic: bool, seed: Any, positions: Any, halves: Any) -> None:
    """Round the marked of c to float16 bits, and take them away from c."""
    bits = c.view(np.uint32)
    n = 0
    for w in range(words.size):
        word = words[w]
        while word != 0:
            i = np.uint64(64 * w) + trailing_zeros(word)
            word &= word - np.uint64(1)
            value = c[i]
            random = random_bits(seed, np.uint64(base) + i) if stochastic else np.uint64(0)
            half = _round_half(bits[i] & _MAGNITUDE, abs(value), stochastic, random)
            half |= (bits[i] & _SIGN) >> np.uint32(16)
            positions[n] = np.uint64(base) + i
            halves[n] = half
            c[i] = value - half_to_float(half)
            n += 1


@jit
def take_floats(c: Any, words: Any, base: Any, positions: Any, values: Any) -> None:
    """Copy the marked of c as they are, and take them away from c."""
    n = 0
    for w in range(words.size):
        word = words[w]
        while word != 0:
            i = np.uint64(64 * w) + trailing_zeros(word)
            word &= word - np.uint64(1)
            positions[n] = np.uint64(base) + i
            values[n] = c[i]
            c[i] = np.float32(0)
            n += 1


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
