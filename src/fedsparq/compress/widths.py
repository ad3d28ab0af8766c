"""Bits for each coordinate out of a budget, and levels by how many bits a coordinate got: for JointSQ and FedFQ.

Both give bits by falling gain, which is one threshold t a layer: a coordinate gets the first bits from t on, more from
another multiple of t on, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.compiled import jit
from fedsparq.compress.levels import round_up
from fedsparq.compress.workspace import Layered
from fedsparq.layout import Vector
from fedsparq.payload import ClassLevels
from fedsparq.payload.kernels import uniform
from fedsparq.payload.values import LARGEST_FLOAT32

Classes = NDArray[np.uint8]
"""How many times each coordinate was given bits."""


def allot(layer: Vector, budget: int, edges: Sequence[float], costs: Sequence[int]) -> Classes:
    """Which class each coordinate is in: class e costs costs[e - 1] bits more than the one below, and begins where
    magnitudes reach edges[e - 1] times the least threshold that the budget allows. Among equals the first ones."""
    classes = np.zeros(layer.size, np.uint8)
    edge, cost = np.array(edges, np.float64), np.array(costs, np.int64)
    low, high = 0, int(np.abs(layer).max(initial=0).view(np.uint32)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if spent(layer, _number(middle), edge, cost) <= budget else (middle, high)
    left = budget - spent(layer, _number(high), edge, cost)
    give(layer, _number(high), _number(low), left, edge, cost, classes)
    return classes


def class_levels(layer: Vector, classes: Classes, counts: Sequence[int], offset: int, seed: int) -> Layered:
    """What is sent of a layer: the coordinates of each class e > 0 at random on one of the two beside them of
    counts[e - 1] levels, equal steps up to the largest magnitude of the class."""
    signed, steps, tops, base = np.zeros(layer.size, np.int16), list[np.float32](), list[int](), 0
    for number, count in enumerate(counts, 1):
        inside = np.flatnonzero(classes == number).astype(np.uint32)
        chosen = layer[inside]
        step = round_up(float(np.abs(chosen).max(initial=0)) / count)
        if not step:
            continue
        levels = np.empty(inside.size, np.int16)
        most = min(count, int(LARGEST_FLOAT32 // float(step)))
        top = draw(chosen, inside, np.float64(step), most, base, np.uint64(seed), offset, levels)
        if top:
            signed[inside] = levels
            steps.append(step)
            tops.append(top)
            base += top
    indices = np.flatnonzero(signed).astype(np.uint32)
    return indices + np.uint32(offset), ClassLevels(np.array(steps, np.float32), tuple(tops), signed[indices])


def _number(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))


@jit
def spent(layer: Any, threshold: float, edges: Any, costs: Any) -> int:
    """How many bits a threshold gives away."""
    total = 0
    for i in range(layer.size):
        magnitude = np.float64(abs(layer[i]))
        for e in range(edges.size):
            if magnitude < threshold * edges[e]:
                break
            total += costs[e]
    return total


@jit
def give(layer: Any, threshold: float, below: float, left: int, edges: Any, costs: Any, classes: Any) -> None:
    """Bits by a threshold, and what is left by the next lower one, as far as it goes."""
    for i in range(layer.size):
        magnitude = np.float64(abs(layer[i]))
        if magnitude == 0:
            continue
        for e in range(edges.size):
            if magnitude < threshold * edges[e]:
                if magnitude < below * edges[e] or costs[e] > left:
                    break
                left -= costs[e]
            classes[i] = e + 1


@jit
def draw(chosen: Any, inside: Any, step: float, most: int, base: int, seed: Any, offset: Any, levels: Any) -> int:
    """Round every |c| / step up or down at random with mean |c| / step; levels count on from base. The highest one."""
    top = 0
    for n in range(chosen.size):
        level = min(int(np.float64(abs(chosen[n])) / step + uniform(seed, offset + inside[n])), most)
        top = max(top, level)
        if level:
            level += base
        levels[n] = -level if chosen[n] < 0 else level
    return top
