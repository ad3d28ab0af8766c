"""The loops of the adaptive method, compiled. docs/ADAPTIVE.md derives what they compute.

A curve is what is known of a layer's magnitudes: for each bin of the float32 numbers (128 to a power of two), how many
magnitudes lie in it or above, and their sum.
"""

from typing import Any

import numpy as np

from fedsparq.compiled import jit, trailing_zeros
from fedsparq.compress.kernels import at_least_word, uniform

BINS = 1 << 11
"""Bins that a curve keeps: the 16 powers of two below the largest magnitude. Bin 0 is never sent."""
_BIN_SHIFT = np.uint32(16)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_BLOCK = 64

MOST_LEVELS = 63
FINE = MOST_LEVELS + 1
"""In place of a number of levels: more than a table holds."""
_HEAD_BITS = 8.0
_LEVEL_BITS = 16.0
_COARSE = 16
_DRAWN_HEAD_BITS = 32.0
_EXACT_LEVELS = 32
STEP = np.sqrt(6 / np.log(2))
"""Levels lie this many square roots of the price apart."""


@jit
def fill_curves(c: Any, bounds: Any, sample: int, curves: Any, bases: Any, peaks: Any) -> None:
    """Fill every layer's curve, which of all bins its bin 0 is, and its largest magnitude.

    Layers lie between neighbouring bounds.
    """
    for layer in range(bases.size):
        part = c[bounds[layer] : bounds[layer + 1]]
        peak = _peak(part.view(np.uint32))
        bases[layer] = max(int(peak >> _BIN_SHIFT) - BINS + 1, 0)
        peaks[layer] = np.uint32(peak).view(np.float32)
        _fill_curve(part, bases[layer], max(1, part.size // sample), curves[0, layer], curves[1, layer])


@jit
def _peak(bits: Any) -> Any:
    """The bits of the largest magnitude."""
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
            place = int((bits[i] & _MAGNITUDE) >> _BIN_SHIFT) - base
            if place >= 0:
                count[place] += 1
                total[place] += np.float64(abs(c[i]))
    scale = c.size / max(seen, 1)
    above = sum_above = 0.0
    for place in range(BINS - 1, -1, -1):
        if count[place] > 0:
            above += scale * count[place]
            sum_above += scale * total[place]
        count[place], total[place] = above, sum_above


@jit
def _edge(place: int) -> float:
    """The smallest magnitude of a bin."""
    return np.float64(np.uint32(np.uint32(place) << _BIN_SHIFT).view(np.float32))


@jit
def _bin_of(magnitude: float) -> int:
    return int(np.float32(magnitude).view(np.uint32) >> _BIN_SHIFT)


@jit
def _x_log_x(x: float) -> float:
    return x * np.log2(x) if x > 0 else 0.0


@jit
def _weigh(count: Any, total: Any, base: int, size: int, place: int, step: float, slope: float, bins: Any) -> Any:
    """Send what lies in this bin or above, in levels a step apart: (worth, bits, number of levels).

    `bins` takes the bins where the levels start.
    """
    kept = count[place]
    bits = _x_log_x(size) - _x_log_x(size - kept) + kept + _HEAD_BITS
    gain = 0.0
    levels = 0
    start = place
    edge = _edge(base + place)
    while start < BINS and count[start] > 0:
        end = BINS
        if levels < MOST_LEVELS:
            edge += step
            end = min(max(_bin_of(edge) - base, start + 1), BINS)
        inside = count[start] - (count[end] if end < BINS else 0.0)
        if inside > 0:
            mass = total[start] - (total[end] if end < BINS else 0.0)
            gain += mass * mass / inside
            bits += _LEVEL_BITS - _x_log_x(inside)
            if levels < MOST_LEVELS:
                bins[levels] = start
            levels += 1
        start = end
    if levels > MOST_LEVELS:
        return _weigh_fine(count, total, base, size, place, step, slope)
    return gain - slope * bits, bits, levels


@jit
def _weigh_fine(count: Any, total: Any, base: int, size: int, place: int, step: float, slope: float) -> Any:
    """`_weigh` for more levels than a table holds; where bins are wider than a step, it is finer than they are."""
    kept = count[place]
    bits = _x_log_x(size) - _x_log_x(size - kept) + kept + _HEAD_BITS
    gain = 0.0
    start = place
    while start < BINS and count[start] > 0:
        end = min(max(_bin_of(_edge(base + start) + step) - base, start + 1), BINS)
        inside = count[start] - (count[end] if end < BINS else 0.0)
        if inside > 0:
            mass = total[start] - (total[end] if end < BINS else 0.0)
            width = _edge(base + end) - _edge(base + start)
            gain += mass * mass / inside
            bits += inside * np.log2(max(width / step, 1.0)) - _x_log_x(inside)
        start = end
    return gain - slope * bits, bits, FINE


@jit
def _choose(count: Any, total: Any, base: int, size: int, slope: float, bins: Any) -> Any:
    """The best way to send a layer when a bit must gain `slope`: (bits, number of levels); `bins` takes their bins."""
    step = STEP * np.sqrt(slope)
    first = max(1, _bin_of(np.sqrt(slope)) - base)
    last = BINS - 1
    while last > 0 and count[last] == 0:
        last -= 1
    best, best_place = -slope * _HEAD_BITS, -1
    for place in range(first, last + 1, _COARSE):
        worth, _, _ = _weigh(count, total, base, size, place, step, slope, bins)
        if worth > best:
            best, best_place = worth, place
    if best_place < 0:
        return _HEAD_BITS, 0
    stride = _COARSE
    while stride > 1:
        stride //= 4
        middle = best_place
        for place in range(max(first, middle - 3 * stride), min(last, middle + 3 * stride) + 1, stride):
            worth, _, _ = _weigh(count, total, base, size, place, step, slope, bins)
            if worth > best:
                best, best_place = worth, place
    _, bits, levels = _weigh(count, total, base, size, best_place, step, slope, bins)
    return bits, levels


@jit
def rate(curves: Any, bases: Any, sizes: Any, slope: float, plans: Any, bins: Any) -> float:
    """The bits of all layers at one slope; `plans` takes each layer's number of levels, `bins` where they start."""
    bits = 0.0
    for layer in range(sizes.size):
        count, total = curves[0, layer], curves[1, layer]
        spent, levels = _choose(count, total, bases[layer], sizes[layer], slope, bins[layer])
        plans[layer] = levels
        bits += spent
    return bits


@jit
def thin(curves: Any, bases: Any, sizes: Any, slope: float, most: float, plans: Any, bins: Any) -> float:
    """Start every layer's levels higher, all alike and as little as possible, until at most so many bits are spent.

    Between two neighbouring slopes a layer may come in or go as a whole. This fills what lies between.
    """
    step = STEP * np.sqrt(slope)
    starts = bins[:, 0].copy()
    raised = 0
    while True:
        bits = 0.0
        for layer in range(sizes.size):
            bits += _HEAD_BITS
            if plans[layer] == 0:
                continue
            count, total, place = curves[0, layer], curves[1, layer], starts[layer] + raised
            if place >= BINS or count[place] == 0:
                plans[layer] = 0
            else:
                size = sizes[layer]
                _, spent, plans[layer] = _weigh(count, total, bases[layer], size, place, step, slope, bins[layer])
                bits += spent - _HEAD_BITS
        if bits <= most or raised == BINS:
            return bits
        raised += 1


@jit
def edges_of(bins: Any, base: int, edges: Any) -> None:
    """The smallest magnitudes of some of a curve's bins."""
    for i in range(bins.size):
        edges[i] = _edge(base + bins[i])


@jit
def take_levels(c: Any, words: Any, base: Any, edges: Any, positions: Any, levels: Any, counts: Any, sums: Any) -> None:
    """The marked of c as signed levels, and of each level how many there are and the sum of their magnitudes."""
    n = 0
    for w in range(words.size):
        word = words[w]
        while word != 0:
            i = np.uint64(64 * w) + trailing_zeros(word)
            word &= word - np.uint64(1)
            magnitude = abs(c[i])
            level = 1
            while level < edges.size and magnitude >= edges[level]:
                level += 1
            counts[level - 1] += 1
            sums[level - 1] += np.float64(magnitude)
            positions[n] = np.uint64(base) + i
            levels[n] = -level if c[i] < 0 else level
            n += 1


@jit
def _above(curve: Any, base: int, magnitude: float) -> Any:
    """Of a layer's curve: how many magnitudes reach this one, and their sum."""
    place = min(max(_bin_of(magnitude) - base, 0), BINS - 1)
    if _bin_of(magnitude) - base >= BINS:
        return 0.0, 0.0
    return curve[0, place], curve[1, place]


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
        here = _DRAWN_HEAD_BITS + _x_log_x(reach)
        level = 0
        while level < _EXACT_LEVELS and count > 0:
            level += 1
            count_next, mass_next = _above(curve, bases[layer], max(level * step, least))
            ramp = (mass - mass_next) / step - (level - 1) * (count - count_next)
            here -= _x_log_x(reach - ramp - count_next)
            reach = ramp + count_next
            if level == 1:
                here += reach
            count, mass = count_next, mass_next
        here -= _x_log_x(reach)
        if count > 0:
            start = min(max(_bin_of(_EXACT_LEVELS * step) - bases[layer], 0), BINS - 1)
            here += _x_log_x(reach) + _fine_bits(curve[0], bases[layer], start, step)
        bits += here
    return bits


@jit
def _fine_bits(count: Any, base: int, start: int, step: float) -> float:
    """Less the sum of x log x over the steps above a bin, where bins are mostly wider than steps."""
    bits = 0.0
    while start < BINS and count[start] > 0:
        end = min(max(_bin_of(_edge(base + start) + step) - base, start + 1), BINS)
        inside = count[start] - (count[end] if end < BINS else 0.0)
        if inside > 0:
            width = _edge(base + end) - _edge(base + start)
            bits += inside * np.log2(max(width / step, 1.0)) - _x_log_x(inside)
        start = end
    return bits


@jit
def draw(c: Any, bounds: Any, steps: Any, leasts: Any, seed: Any, positions: Any, levels: Any, ends: Any) -> int:
    """Round c at random to the steps beside, with mean c, from its layer's least magnitude on; list what is not 0.

    `ends` takes where each layer's list ends; returns where the last does.
    """
    bits = c.view(np.uint32)
    n = 0
    for layer in range(steps.size):
        step, limit, base = np.float64(steps[layer]), np.float32(leasts[layer]).view(np.uint32), bounds[layer]
        layer_bits = bits[base : bounds[layer + 1]]
        for start in range(0, layer_bits.size, 64):
            word = at_least_word(layer_bits, start, limit)
            while word != 0:
                place = np.uint64(base + start) + trailing_zeros(word)
                word &= word - np.uint64(1)
                level = int(np.float64(abs(c[place])) / step + uniform(seed, place))
                if level > 0:
                    positions[n] = place
                    levels[n] = -level if c[place] < 0 else level
                    n += 1
        ends[layer] = n
    return n


@jit
def forget(c: Any, bounds: Any, leasts: Any) -> None:
    """Set to zero what reaches its layer's least magnitude."""
    for layer in range(leasts.size):
        part, least = c[bounds[layer] : bounds[layer + 1]], leasts[layer]
        for i in range(part.size):
            part[i] = part[i] if abs(part[i]) < least else np.float32(0)
