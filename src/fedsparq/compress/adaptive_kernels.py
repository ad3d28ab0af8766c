"""The loops of the adaptive methods, compiled. docs/ADAPTIVE.md derives what they compute.

A curve is what is known of a layer's magnitudes: for each bin of the float32 numbers (128 to a power of two), how many
magnitudes lie in it or above, and their sum.
"""

from typing import Any

import numpy as np

from fedsparq.compiled import jit

BINS = 1 << 11
"""Bins that a curve keeps: the 16 powers of two below the largest magnitude. Bin 0 is never sent."""
BIN_SHIFT = np.uint32(16)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_BLOCK = 64

MAX_LEVELS = 63
UNIFORM = MAX_LEVELS + 1
"""Instead of a number of levels: more than a table holds."""
_HEADER_BITS, _DRAWN_HEADER_BITS = 8.0, 32.0
_LEVEL_BITS = 16.0
_COARSE = 16
_EXACT_LEVELS = 32
STEP = np.sqrt(6 / np.log(2))
"""Levels lie this many square roots of the Lagrange multiplier apart."""


@jit
def fill_curves(c: Any, bounds: Any, sample: int, curves: Any, bases: Any, peaks: Any) -> None:
    """Fill every layer's curve, which of all bins its bin 0 is, and its largest magnitude.

    Layers lie between neighbouring bounds.
    """
    for layer in range(bases.size):
        part = c[bounds[layer] : bounds[layer + 1]]
        peak = _peak(part.view(np.uint32))
        bases[layer] = max(int(peak >> BIN_SHIFT) - BINS + 1, 0)
        peaks[layer] = np.uint32(peak).view(np.float32)
        _fill_curve(part, bases[layer], max(1, part.size // sample), curves[0, layer], curves[1, layer])


@jit
def _peak(bits: Any) -> Any:
    """Return the bits of the largest magnitude."""
    most = np.uint32(0)
    for i in range(bits.size):
        most = max(most, bits[i] & _MAGNITUDE)
    return np.uint32(most)


@jit
def _fill_curve(c: Any, base: int, skip: int, count: Any, total: Any) -> None:
    """Fill a layer's curve from one block of 64 coordinates in `skip`."""
    bits, seen = c.view(np.uint32), 0
    count[:] = 0
    total[:] = 0
    for start in range(0, c.size, _BLOCK * skip):
        end = min(start + _BLOCK, c.size)
        seen += end - start
        for i in range(start, end):
            bin = int((bits[i] & _MAGNITUDE) >> BIN_SHIFT) - base
            if bin >= 0:
                count[bin] += 1
                total[bin] += np.float64(abs(c[i]))
    scale = c.size / max(seen, 1)
    above = sum_above = 0.0
    for bin in range(BINS - 1, -1, -1):
        if count[bin] > 0:
            above += scale * count[bin]
            sum_above += scale * total[bin]
        count[bin], total[bin] = above, sum_above


@jit
def edge_of(bin: int) -> float:
    """Return the smallest magnitude of a bin."""
    return np.float64(np.uint32(np.uint32(bin) << BIN_SHIFT).view(np.float32))


@jit
def bin_of(magnitude: float) -> int:
    return int(np.float32(magnitude).view(np.uint32) >> BIN_SHIFT)


@jit
def x_log_x(x: float) -> float:
    return x * np.log2(x) if x > 0 else 0.0


@jit
def _layer_gain(count: Any, total: Any, base: int, size: int, bin: int, step: float, lagrange: float, bins: Any) -> Any:
    """Send what lies in this bin or above, in levels a step apart: (worth, bits, number of levels).

    `bins` takes the bins where the levels start.
    """
    kept = count[bin]
    bits_of_indices = x_log_x(size) - x_log_x(size - kept) + kept + _HEADER_BITS
    bits, gain = bits_of_indices, 0.0
    levels = 0
    start = bin
    edge = edge_of(base + bin)
    while start < BINS and count[start] > 0:
        end = BINS
        if levels < MAX_LEVELS:
            edge += step
            end = min(max(bin_of(edge) - base, start + 1), BINS)
        inside = count[start] - (count[end] if end < BINS else 0.0)
        if inside > 0:
            mass = total[start] - (total[end] if end < BINS else 0.0)
            gain += mass * mass / inside
            bits += _LEVEL_BITS - x_log_x(inside)
            if levels < MAX_LEVELS:
                bins[levels] = start
            levels += 1
        start = end
    if levels > MAX_LEVELS:
        gain, bits = fine_levels(count, total, base, bin, step, bits_of_indices)
        levels = UNIFORM
    return gain - lagrange * bits, bits, levels


@jit
def fine_levels(count: Any, total: Any, base: int, start: int, step: float, bits: float) -> Any:
    """Return (gain, `bits` and those of the levels) of what lies in a bin or above, in any number of levels.

    Where bins are wider than a step, levels are finer than bins.
    """
    gain = 0.0
    while start < BINS and count[start] > 0:
        end = min(max(bin_of(edge_of(base + start) + step) - base, start + 1), BINS)
        inside = count[start] - (count[end] if end < BINS else 0.0)
        if inside > 0:
            mass = total[start] - (total[end] if end < BINS else 0.0)
            width = edge_of(base + end) - edge_of(base + start)
            gain += mass * mass / inside
            bits += inside * np.log2(max(width / step, 1.0)) - x_log_x(inside)
        start = end
    return gain, bits


@jit
def _best_levels(count: Any, total: Any, base: int, size: int, lagrange: float, bins: Any) -> Any:
    """Return (bits, levels) of the best way to send a layer if a bit must gain `lagrange`; `bins` takes the starts."""
    step = STEP * np.sqrt(lagrange)
    first = max(1, bin_of(np.sqrt(lagrange)) - base)
    last = BINS - 1
    while last > 0 and count[last] == 0:
        last -= 1
    best, best_bin = -lagrange * _HEADER_BITS, -1
    stride, low, high = _COARSE, first, last
    while stride > 0:
        for bin in range(low, high + 1, stride):
            worth, _, _ = _layer_gain(count, total, base, size, bin, step, lagrange, bins)
            if worth > best:
                best, best_bin = worth, bin
        if best_bin < 0:
            return _HEADER_BITS, 0
        stride //= 4
        low, high = max(first, best_bin - 3 * stride), min(last, best_bin + 3 * stride)
    _, bits, levels = _layer_gain(count, total, base, size, best_bin, step, lagrange, bins)
    return bits, levels


@jit
def total_bits(curves: Any, bases: Any, sizes: Any, lagrange: float, plans: Any, bins: Any) -> float:
    """Return the bits of all layers at one lagrange; `plans` takes the numbers of levels, `bins` where they start."""
    bits = 0.0
    for layer in range(sizes.size):
        count, total = curves[0, layer], curves[1, layer]
        spent, levels = _best_levels(count, total, bases[layer], sizes[layer], lagrange, bins[layer])
        plans[layer] = levels
        bits += spent
    return bits


@jit
def raise_thresholds(curves: Any, bases: Any, sizes: Any, lagrange: float, most: float, plans: Any, bins: Any) -> float:
    """Start all layers' levels higher, each by as many bins and as few as possible, until at most `most` bits are used.

    Between two neighbouring multipliers a layer may come in or go as a whole. This fills what lies between.
    """
    step = STEP * np.sqrt(lagrange)
    starts = bins[:, 0].copy()
    raised = 0
    while True:
        bits = 0.0
        for layer in range(sizes.size):
            bits += _HEADER_BITS
            if plans[layer] == 0:
                continue
            count, total, bin = curves[0, layer], curves[1, layer], starts[layer] + raised
            if bin >= BINS or count[bin] == 0:
                plans[layer] = 0
            else:
                size = sizes[layer]
                _, spent, plans[layer] = _layer_gain(count, total, bases[layer], size, bin, step, lagrange, bins[layer])
                bits += spent - _HEADER_BITS
        if bits <= most or raised == BINS:
            return bits
        raised += 1


@jit
def _above(curve: Any, base: int, magnitude: float) -> Any:
    """Return how many magnitudes of a layer's curve reach this one, and their sum."""
    bin = max(bin_of(magnitude) - base, 0)
    return (curve[0, bin], curve[1, bin]) if bin < BINS else (0.0, 0.0)


@jit
def drawn_bits(curves: Any, bases: Any, sizes: Any, steps: Any, deferred: float) -> float:
    """Return the expected bits if what is not below `deferred` steps is rounded at random to the steps next to it.

    The chance that a magnitude becomes level j or more is that of a ramp from (j - 1) to j steps.
    """
    bits = 0.0
    for layer in range(sizes.size):
        curve, step, least = curves[:, layer], steps[layer], deferred * steps[layer]
        count, mass = _above(curve, bases[layer], least)
        reach = float(sizes[layer])
        here = _DRAWN_HEADER_BITS + x_log_x(reach)
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
