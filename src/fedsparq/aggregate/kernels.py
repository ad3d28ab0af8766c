"""The loops of aggregators, compiled."""

from typing import Any

import numpy as np

from fedsparq.compiled import jit
from fedsparq.payload.kernels import random_bits


@jit
def dot_tile(tile: Any, indices: Any, values: Any, out: Any) -> None:
    """out += tile[indices].T @ values, in float64."""
    for n in range(indices.size):
        value = np.float64(values[n])
        for row in range(out.size):
            out[row] += np.float64(tile[indices[n], row]) * value


@jit
def add_to_sketch(indices: Any, values: Any, seed: Any, short: Any) -> None:
    """Each value, its sign turned or not, is added where a hash of its index says."""
    mask = np.uint64(short.size - 1)
    for n in range(indices.size):
        bits = random_bits(seed, indices[n])
        place = bits & mask
        if bits >> np.uint64(63):
            short[place] -= values[n]
        else:
            short[place] += values[n]
