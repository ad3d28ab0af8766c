"""The loops of values and selections, compiled. Decoders return a negative number for input that is not right."""

from typing import Any

import numpy as np

from fedsparq.compiled import jit, jit_reordering_sums

_HALF_SIGN = np.uint32(0x8000)
_DROPPED = np.uint32(13)  # mantissa bits that float32 has beyond float16


@jit
def random_bits(seed: Any, index: Any) -> Any:
    """Return 64 random bits as a function of a seed and an index (splitmix64)."""
    z = seed + (np.uint64(index) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@jit
def uniform(seed: Any, index: Any) -> Any:
    """Return a float64 in [0, 1)."""
    return np.float64(random_bits(seed, index) >> np.uint64(11)) * 2.0**-53


@jit
def random_indices(seed: Any, size: int, count: int, indices: Any) -> None:
    """Draw `count` of `size` indices, all sets equally likely: one pass, each kept with probability wanted / left."""
    n = 0
    for i in range(size):
        draw = (random_bits(seed, i) >> np.uint64(32)) * np.uint64(size - i)
        if (draw >> np.uint64(32)) < np.uint64(count - n):
            indices[n] = i
            n += 1
            if n == count:
                return


@jit
def half_to_float(half: Any) -> Any:
    """Return the float32 of finite float16 bits, sign included."""
    sign = (np.uint32(half) & _HALF_SIGN) << np.uint32(16)
    magnitude = (np.uint32(half) & np.uint32(0x7FFF)) << _DROPPED
    return np.uint32(sign | magnitude).view(np.float32) * np.float32(2.0**112)


@jit
def halves_to_floats(halves: Any, out: Any) -> None:
    for n in range(halves.size):
        out[n] = half_to_float(halves[n])


@jit
def add_scaled(accumulator: Any, indices: Any, values: Any, weight: Any) -> None:
    """Compute accumulator[indices] += weight * values; for the entire accumulator if indices is None."""
    for n in range(values.size):
        accumulator[n if indices is None else indices[n]] += weight * values[n]


@jit
def add_scaled_halves(accumulator: Any, indices: Any, halves: Any, weight: Any) -> None:
    """Compute the same for values that are the bits of float16 numbers."""
    for n in range(halves.size):
        accumulator[n if indices is None else indices[n]] += weight * half_to_float(halves[n])


@jit_reordering_sums
def dot(vector: Any, values: Any) -> float:
    """Return the inner product, in float64."""
    total = 0.0
    for i in range(values.size):
        total += np.float64(vector[i]) * np.float64(values[i])
    return total


@jit
def gather_dot(vector: Any, indices: Any, values: Any) -> float:
    """Return the inner product, in float64, of a vector with one that is `values` at `indices` and zero elsewhere."""
    total = 0.0
    for n in range(indices.size):
        total += np.float64(vector[indices[n]]) * np.float64(values[n])
    return total


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
    """Pack values of `width` bits (1 to 8) in sequence, from the lowest bit of each byte up."""
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
