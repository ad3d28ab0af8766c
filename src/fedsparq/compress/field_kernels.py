"""The loops of the field's other methods, compiled."""

from typing import Any

import numpy as np

from fedsparq.compiled import jit
from fedsparq.compress.kernels import random_bits, uniform

_SIGN = np.uint32(0x80000000)


@jit
def bin_maxima(c: Any, update: Any, bin_size: int, places: Any) -> Any:
    """Where |c + update| reaches the largest |c| of its bin (if that is not 0): the count, and the mean maximum."""
    kept = 0
    total = 0.0
    bins = 0
    for start in range(0, c.size, bin_size):
        end = min(start + bin_size, c.size)
        most = np.float32(0)
        for i in range(start, end):
            most = max(most, abs(c[i]))
        total += np.float64(most)
        bins += 1
        if most == 0:
            continue
        for i in range(start, end):
            if abs(c[i] + update[i]) >= most:
                places[kept] = i
                kept += 1
    return kept, total / max(bins, 1)


@jit
def dead_zone_levels(c: Any, step: Any, zone: Any, most: int, levels: Any) -> int:
    """Whole multiples of step: 0 below zone * step, then one more each step; returns how many are not 0."""
    kept = 0
    offset = 1.0 - zone
    for i in range(c.size):
        level = min(int(np.float64(abs(c[i])) / step + offset), most)
        levels[i] = -level if c[i] < 0 else level
        kept += int(level > 0)
    return kept


@jit
def bucket_norms(c: Any, bucket: int, largest: bool, norms: Any) -> None:
    """The Euclidean norm, or the largest magnitude, of each bucket."""
    for b in range(norms.size):
        total = 0.0
        most = 0.0
        for i in range(b * bucket, min((b + 1) * bucket, c.size)):
            value = np.float64(abs(c[i]))
            total += value * value
            most = max(most, value)
        norms[b] = most if largest else np.sqrt(total)


@jit
def bucket_levels(c: Any, bucket: int, steps: Any, most: int, base: Any, seed: Any, levels: Any) -> None:
    """Round every |c| / step of its bucket up or down at random with mean |c| / step."""
    for i in range(c.size):
        step = np.float64(steps[i // bucket])
        level = 0
        if step > 0:
            level = min(int(np.float64(abs(c[i])) / step + uniform(seed, base + i)), most)
        levels[i] = -level if c[i] < 0 else level


@jit
def flip_signs(x: Any, seed: Any) -> None:
    """Multiply each by a random sign drawn from the seed: bit i % 64 of word i // 64."""
    word = np.uint64(0)
    bits = x.view(np.uint32)
    for i in range(x.size):
        if i & 63 == 0:
            word = random_bits(seed, i >> 6)
        bits[i] ^= np.uint32((word >> np.uint64(i & 63)) & np.uint64(1)) << np.uint32(31)


@jit
def hadamard(x: Any) -> None:
    """The Walsh-Hadamard transform in place, not normalised; the size is a power of two."""
    half = 1
    while half < x.size:
        for start in range(0, x.size, 2 * half):
            for i in range(start, start + half):
                a, b = x[i], x[i + half]
                x[i] = a + b
                x[i + half] = a - b
        half *= 2


@jit
def rotate(x: Any, seed: Any, number: int) -> None:
    """A random rotation of chunk `number`: random signs, then Walsh-Hadamard, normalised."""
    flip_signs(x, random_bits(seed, number))
    hadamard(x)
    x *= np.float32(1.0 / np.sqrt(x.size))


@jit
def rotate_back(x: Any, seed: Any, number: int) -> None:
    """Undo `rotate`."""
    hadamard(x)
    flip_signs(x, random_bits(seed, number))
    x *= np.float32(1.0 / np.sqrt(x.size))
