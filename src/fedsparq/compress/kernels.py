"""The loops of selectors and quantizers, compiled; each runs on any CPU.

Layers lie in the flat vector `c` between neighbouring `bounds`. Indices are uint32, strictly increasing.
"""

from typing import Any

import numpy as np

from fedsparq.compiled import count_ones, jit, jit_reordering_sums, trailing_zeros
from fedsparq.payload.kernels import random_bits

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SIGN = np.uint32(0x80000000)
_HALF_MAX_BITS = np.uint32(0x477FE000)  # 65504 as a float32
_HALF_NORMAL_BITS = np.uint32(0x38800000)  # 2**-14 as a float32, the smallest normal float16
_REBIAS = np.uint32(0x38000000)  # the exponents of float32 and float16 differ by 112
_DROPPED = np.uint32(13)  # mantissa bits that float32 has beyond float16
_DROPPED_MASK = np.uint32(0x1FFF)
_NONE = np.uint32(0)
_HALF = np.float32(0.5)
_HALF_BITS = np.uint32(0x3F000000)  # 0.5 as a float32: its last bit is worth 2**-24, as that of a subnormal float16

_BLOCK = 4096
"""Values that are collected and rounded together: few enough for a CPU's first cache."""
STRIDE = 8
"""Indices that are listed at a time, needed or not: a branch per index would be guessed wrong too often. Lists need
room for this many more."""


@jit_reordering_sums
def _add_layer(update: Any, residual: Any, c: Any) -> float:
    """Compute c = update + residual (None: no residual), and return the sum of |c|, not finite if any of c is not."""
    total = 0.0
    for i in range(c.size):
        if residual is None:
            c[i] = update[i]
        else:
            c[i] = update[i] + residual[i]
        total += abs(np.float64(c[i]))
    return total


@jit
def add(update: Any, residual: Any, c: Any, bounds: Any, sums: Any) -> None:
    """Compute c = update + residual (None: no residual); `sums` takes the sum of |c| of each layer."""
    for layer in range(sums.size):
        start, end = bounds[layer], bounds[layer + 1]
        own = None if residual is None else residual[start:end]
        sums[layer] = _add_layer(update[start:end], own, c[start:end])


@jit
def _full_word(bits: Any, limit: Any) -> Any:
    """Return the bitmap of magnitudes of at least `limit` among 64: a known length becomes vector instructions."""
    word = np.uint64(0)
    for j in range(64):
        word |= np.uint64((bits[j] & _MAGNITUDE) >= limit) << np.uint64(j)
    return word


@jit
def count_at_least(c: Any, bounds: Any, limits: Any) -> int:
    """Count the magnitudes that reach their layer's limit."""
    bits = c.view(np.uint32)
    total = 0
    for layer in range(limits.size):
        limit, part = np.float32(limits[layer]).view(np.uint32), bits[bounds[layer] : bounds[layer + 1]]
        count: Any = _NONE
        for i in range(part.size):
            count = np.uint32(count + np.uint32((part[i] & _MAGNITUDE) >= limit))
        total += count
    return total


@jit
def list_at_least(c: Any, bounds: Any, limits: Any, indices: Any) -> int:
    """List where magnitudes reach their layer's limit, and return how many do."""
    bits = c.view(np.uint32)
    n = 0
    for layer in range(limits.size):
        limit, part = np.float32(limits[layer]).view(np.uint32), bits[bounds[layer] : bounds[layer + 1]]
        full = part.size - part.size % 64
        for start in range(0, full, 64):
            word = _full_word(part[start : start + 64], limit)
            base = np.uint64(bounds[layer] + start)
            count = int(count_ones(word))
            for listed in range(n, n + count, STRIDE):
                for j in range(STRIDE):
                    indices[np.uint64(listed + j)] = base + trailing_zeros(word)
                    word &= word - np.uint64(1)
            n += count
        for i in range(full, part.size):
            if part[i] & _MAGNITUDE >= limit:
                indices[n] = bounds[layer] + i
                n += 1
    return n


@jit
def take_halves(c: Any, indices: Any, stochastic: bool, seed: Any, halves: Any) -> None:
    """Write c[indices], or all of c where indices is None, as the bits of float16 numbers."""
    bits, block = c.view(np.uint32), np.empty(_BLOCK, np.uint32)
    for start in range(0, halves.size, _BLOCK):
        count = min(_BLOCK, halves.size - start)
        for n in range(count):
            block[n] = bits[start + n if indices is None else indices[start + n]]
        if stochastic:
            for n in range(count):
                index = np.uint64(start + n if indices is None else indices[start + n])
                halves[start + n] = _random_half(block[n], random_bits(seed, index))
        else:
            for n in range(count):
                halves[start + n] = _nearest_half(block[n])


@jit
def kth_magnitude(c: Any, count: int) -> Any:
    """Return the count-th largest of |c| (count >= 1), from counts of its upper, then its lower bits."""
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
def _nearest_half(bits: Any) -> Any:
    """Return float16 bits of float32 bits: nearest with ties to even, saturating at 65504. Without a branch."""
    magnitude = np.uint32(min(np.uint32(bits & _MAGNITUDE), _HALF_MAX_BITS))
    odd = (magnitude >> _DROPPED) & np.uint32(1)
    normal = np.uint32(magnitude - _REBIAS + np.uint32(0xFFF) + odd) >> _DROPPED
    subnormal = np.float32(magnitude.view(np.float32) + _HALF).view(np.uint32) - _HALF_BITS
    half = normal if magnitude >= _HALF_NORMAL_BITS else subnormal
    return half | ((bits & _SIGN) >> np.uint32(16))


@jit
def _random_half(bits: Any, random: Any) -> Any:
    """Return float16 bits of float32 bits: rounded at random so that the mean is exact, saturating at 65504."""
    magnitude = np.uint32(min(np.uint32(bits & _MAGNITUDE), _HALF_MAX_BITS))
    if magnitude >= _HALF_NORMAL_BITS:
        carry = np.uint32(random >> np.uint64(32)) & _DROPPED_MASK if magnitude < _HALF_MAX_BITS else np.uint32(0)
        half = np.uint32(magnitude - _REBIAS + carry) >> _DROPPED
    else:
        draw = np.float64(random >> np.uint64(11)) * 2.0**-53
        half = np.uint32(np.floor(np.float64(magnitude.view(np.float32)) * 2.0**24 + draw))
    return half | ((bits & _SIGN) >> np.uint32(16))
