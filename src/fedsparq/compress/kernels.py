"""The loops of selectors and quantizers, compiled; each runs on any CPU.

Layers are stretches of the flat vector `c` between neighbouring `bounds`. A quantizer lists indices (uint32, rising) of
what it keeps with their values, and takes what will be decoded away from `c`: the residual is what is left.
"""

from typing import Any

import numpy as np

from fedsparq.compiled import count_ones, jit, jit_reordering_sums, trailing_zeros
from fedsparq.payload.kernels import half_to_float, random_bits

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SIGN = np.uint32(0x80000000)
_HALF_MAX_BITS = np.uint32(0x477FE000)  # 65504 as a float32
_HALF_NORMAL_BITS = np.uint32(0x38800000)  # 2**-14 as a float32, the smallest normal float16
_REBIAS = np.uint32(0x38000000)  # the exponents of float32 and float16 differ by 112
_DROPPED = np.uint32(13)  # mantissa bits that float32 has beyond float16
_DROPPED_MASK = np.uint32(0x1FFF)
_HALF = np.float32(0.5)
_HALF_BITS = np.uint32(0x3F000000)  # 0.5 as a float32: its last bit is worth 2**-24, as that of a subnormal float16

_BLOCK = 4096
"""Coordinates that are listed, rounded and written back together: few enough for a CPU's first cache."""
STRIDE = 8
"""Indices that are listed at a time, needed or not: a branch per index would be guessed wrong too often. Lists need
room for so many more."""
FLOAT32, NEAREST, STOCHASTIC = 0, 1, 2
"""How values are written: as they are, or as the bits of a float16."""


@jit_reordering_sums
def _add_layer(update: Any, residual: Any, c: Any) -> float:
    """c = update + residual, if that is not None; returns the sum of |c|, not finite if any of c is not."""
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
    """c = update + residual, if that is not None; `sums` takes the sum of |c| of each layer."""
    for layer in range(sums.size):
        start, end = bounds[layer], bounds[layer + 1]
        own = None if residual is None else residual[start:end]
        sums[layer] = _add_layer(update[start:end], own, c[start:end])


@jit
def at_least_word(bits: Any, limit: Any) -> Any:
    """A word of the bitmap that marks magnitudes of at least `limit`: the one for these coordinates, 64 at most."""
    word = np.uint64(0)
    if bits.size == 64:  # all at once
        for j in range(64):
            word |= np.uint64((bits[j] & _MAGNITUDE) >= limit) << np.uint64(j)
    else:
        for j in range(bits.size):
            word |= np.uint64((bits[j] & _MAGNITUDE) >= limit) << np.uint64(j)
    return word


@jit
def _list_block(bits: Any, limit: Any, first: Any, indices: Any) -> int:
    """List where magnitudes reach the limit, as indices from `first` on; returns how many."""
    n = 0
    for start in range(0, bits.size, 64):
        word = at_least_word(bits[start : start + 64], limit)
        base = np.uint64(first) + np.uint64(start)
        count = int(count_ones(word))
        for listed in range(n, n + count, STRIDE):
            for j in range(STRIDE):
                indices[np.uint64(listed + j)] = base + trailing_zeros(word)
                word &= word - np.uint64(1)
        n += count
    return n


@jit
def _take_block(c: Any, indices: Any, form: int, seed: Any, values: Any, left: Any) -> None:
    """Write the values at these indices in some form, and take them away; `left` is memory for as many."""
    left_bits = left.view(np.uint32)
    for n in range(indices.size):
        left[n] = c[indices[n]]
    if form == FLOAT32:
        for n in range(indices.size):
            values[n] = left[n]
            left[n] = np.float32(0)
    else:
        if form == STOCHASTIC:
            for n in range(indices.size):
                values[n] = _random_half(left_bits[n], random_bits(seed, np.uint64(indices[n])))
        else:
            for n in range(indices.size):
                values[n] = _nearest_half(left_bits[n])
        for n in range(indices.size):
            left[n] -= half_to_float(values[n])
    for n in range(indices.size):
        c[indices[n]] = left[n]


@jit
def take_at_least(c: Any, bounds: Any, limits: Any, form: int, seed: Any, done: int, indices: Any, values: Any) -> int:
    """Take away what reaches its layer's limit; indices and values are listed from `done` on. Returns their end."""
    left = np.empty(_BLOCK, np.float32)
    for layer in range(limits.size):
        limit, end = np.float32(limits[layer]).view(np.uint32), bounds[layer + 1]
        for start in range(bounds[layer], end, _BLOCK):
            block = c[start : min(start + _BLOCK, end)]
            until = done + _list_block(block.view(np.uint32), limit, start, indices[done:])
            _take_block(c, indices[done:until], form, seed, values[done:until], left)
            done = until
    return done


@jit
def take_listed(c: Any, indices: Any, form: int, seed: Any, values: Any) -> None:
    """Take away what is listed already."""
    left = np.empty(_BLOCK, np.float32)
    for start in range(0, indices.size, _BLOCK):
        end = start + _BLOCK
        _take_block(c, indices[start:end], form, seed, values[start:end], left)


@jit
def list_at_least(c: Any, limit: Any, indices: Any) -> int:
    """List where |c| reaches the limit; returns how many there are."""
    return _list_block(c.view(np.uint32), np.float32(limit).view(np.uint32), 0, indices)


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
