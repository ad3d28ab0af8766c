"""The loops of the adaptive method, compiled. docs/ADAPTIVE.md derives what they compute.

A curve is what is known of a layer's magnitudes: for each bin of the float32 numbers (256 to a power of two), how many
magnitudes lie in it or above, and their sum.
"""

from typing import Any

import numpy as np

from fedsparq.compiled import jit, trailing_zeros
from fedsparq.compress.kernels import uniform

BINS = 1 << 12
"""Bins that a curve keeps: the 16 powers of two below the largest magnitude. Bin 0 is never sent."""
_BIN_SHIFT = np.uint32(15)
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
def curve(c: Any, skip: int, count: Any, total: Any) -> int:
    """Fill a layer's curve from one block of 64 coordinates in `skip`; returns which of all bins its bin 0 is."""
    bits = c.view(np.uint32)
    most, seen = np.uint32(0), 0
    for start in range(0, c.size, _BLOCK * skip):
        end = min(start + _BLOCK, c.size)
        for i in range(start, end):
            most = max(most, bits[i] & _MAGNITUDE)
        seen += end - start
    base = max(int(most >> _BIN_SHIFT) - BINS + 1, 0)
    count[:] = 0
    total[:] = 0
    for start in range(0, c.size, _BLOCK * skip):
        for i in range(start, min(start + _BLOCK, c.size)):
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
    return base


@jit
def _edge(place: int) -> float:
    """The smallest magnitude of a bin."""
    return np.float64(np.uint32(np.uint32(place) << _BIN_SHIFT).view(np.float32))


@jit
def largest(counts: Any, bases: Any) -> float:
    """About the largest magnitude of all layers; 0 if there is none but zeros."""
    most = 0.0
    for layer in range(bases.size):
        place = BINS - 1
        while place > 0 and counts[layer, place] == 0:
            place -= 1
        if place > 0:
            most = max(most, _edge(bases[layer] + place + 1))
    return most


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
def drawn_bits(curves: Any, bases: Any, sizes: Any, step: float, least: float) -> float:
    """The bits that are to be expected where every magnitude from `least` on is rounded at random to the steps beside.

    The chance that a magnitude becomes level j or more is that of a ramp from (j - 1) to j steps.
    """
    bits = 0.0
    for layer in range(sizes.size):
        curve = curves[:, layer]
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
def draw(c: Any, words: Any, base: Any, step: Any, seed: Any, positions: Any, levels: Any) -> int:
    """Round the marked of c at random to the steps beside, with mean c; list those that are not 0."""
    n = 0
    for w in range(words.size):
        word = words[w]
        while word != 0:
            i = np.uint64(64 * w) + trailing_zeros(word)
            word &= word - np.uint64(1)
            place = np.uint64(base) + i
            level = int(np.float64(abs(c[i])) / step + uniform(seed, place))
            if level > 0:
                positions[n] = place
                levels[n] = -level if c[i] < 0 else level
                n += 1
    return n


@jit
def forget(c: Any, least: Any) -> None:
    """Set to zero what reaches a magnitude."""
    for i in range(c.size):
        if abs(c[i]) >= least:
            c[i] = np.float32(0)
