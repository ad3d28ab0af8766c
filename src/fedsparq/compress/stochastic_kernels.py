"""The loops of the stochastic levels, compiled. docs/ADAPTIVE.md derives what they compute."""

from typing import Any

import numpy as np

from fedsparq.compiled import jit, trailing_zeros
from fedsparq.compress.adaptive_kernels import BINS, bin_of, fine_levels, x_log_x
from fedsparq.compress.kernels import at_least_word
from fedsparq.payload.kernels import uniform

_HEADER_BITS = 32.0
_EXACT_LEVELS = 32


@jit
def _above(curve: Any, base: int, magnitude: float) -> Any:
    """Of a layer's curve: how many magnitudes reach this one, and their sum."""
    bin = max(bin_of(magnitude) - base, 0)
    return (curve[0, bin], curve[1, bin]) if bin < BINS else (0.0, 0.0)


@jit
def drawn_bits(curves: Any, bases: Any, sizes: Any, steps: Any, deferred: float) -> float:
    """The bits that are to be expected where what is not below `deferred` steps is rounded at random to steps beside.

    The chance that a magnitude becomes level j or more is that of a ramp from (j - 1) to j steps.
    """
    bits = 0.0
    for layer in range(sizes.size):
        curve, step, least = curves[:, layer], steps[layer], deferred * steps[layer]
        count, mass = _above(curve, bases[layer], least)
        reach = float(sizes[layer])
        here = _HEADER_BITS + x_log_x(reach)
        level = 0
        while level < _EXACT_LEVELS and count > 0:
            level += 1
            count_next, mass_next = _above(curve, bases[layer], max(level * step, least))
            ramp = (mass - mass_next) / step - (level - 1) * (count - count_next)
            here -= x_log_x(reach - ramp - count_next)
            reach = ramp + count_next
            if level == 1:
                here += reach
            count, mass = count_next, mass_next
        here -= x_log_x(reach)
        if count > 0:
            start = min(max(bin_of(_EXACT_LEVELS * step) - bases[layer], 0), BINS - 1)
            here += x_log_x(reach) + fine_levels(curve[0], curve[1], bases[layer], start, step, 0.0)[1]
        bits += here
    return bits


@jit
def draw(c: Any, bounds: Any, steps: Any, leasts: Any, seed: Any, indices: Any, levels: Any) -> int:
    """Round c at random to the steps beside, with mean c, from its layer's least magnitude on; list what is not 0.

    Returns how many these are.
    """
    bits = c.view(np.uint32)
    n = 0
    for layer in range(steps.size):
        step, limit, base = np.float64(steps[layer]), np.float32(leasts[layer]).view(np.uint32), bounds[layer]
        layer_bits = bits[base : bounds[layer + 1]]
        for start in range(0, layer_bits.size, 64):
            word = at_least_word(layer_bits[start : start + 64], limit)
            while word != 0:
                index = np.uint64(base + start) + trailing_zeros(word)
                word &= word - np.uint64(1)
                level = int(np.float64(abs(c[index])) / step + uniform(seed, index))
                if level > 0:
                    indices[n] = index
                    levels[n] = -level if c[index] < 0 else level
                    n += 1
    return n


@jit
def clear(c: Any, bounds: Any, leasts: Any) -> None:
    """Set to zero what reaches its layer's least magnitude."""
    for layer in range(leasts.size):
        part, least = c[bounds[layer] : bounds[layer + 1]], leasts[layer]
        for i in range(part.size):
            part[i] = part[i] if abs(part[i]) < least else np.float32(0)
