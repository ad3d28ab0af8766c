"""Bits for each coordinate out of a budget, and levels by how many bits a coordinate got: JointSQ and FedFQ.

Both give bits by decreasing gain, which is one threshold t per layer: a coordinate gets the first bits from t on, more
from another multiple of t on, and so on.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsparq.aggregate import Mean
from fedsparq.compiled import jit
from fedsparq.compress.levels import round_up, stochastic_levels
from fedsparq.compress.sparsify import assemble
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.method import Method
from fedsparq.methods.registry import register
from fedsparq.options import Fraction, component
from fedsparq.payload import ClassLevels, Indices, Values
from fedsparq.payload.kernels import uniform
from fedsparq.payload.values import LARGEST_FLOAT32
from fedsparq.protocols import Compressed, CompressorTraits, Stateless

BitClasses = NDArray[np.uint8]
"""How many times each coordinate was given bits."""
Solver = Literal["greedy", "anneal"]
WIDTHS = (0, 2, 4, 8)
"""JointSQ's numbers of bits."""
_WIDEST = 4
"""FedFQ's widths are 0, 2, 4, 6 and 8 bits."""
_SWEEPS = 20


class BitAllocation(Stateless, ABC):
    """Give each coordinate of a layer to a class, and round those of a class to its own number of levels.

    Levels are equal steps up to the largest magnitude of the class, drawn at random, unbiased.
    """

    levels: ClassVar[Sequence[int]]
    """The number of levels of each class but the first, which is not sent."""
    traits: ClassVar[CompressorTraits] = CompressorTraits(
        is_contractive=False, is_layerwise=True, copies_values=True, value_kinds=(ClassLevels,)
    )

    @abstractmethod
    def classes(self, layer: Vector, seed: int) -> BitClasses:
        """Return the class of each coordinate, from 0."""

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        layers, seed = list[tuple[Indices, Values]](), int(rng.integers(2**63))
        for tensor in layout.parameters:
            c = update[tensor.span]
            layers.append(class_levels(c, self.classes(c, seed), self.levels, tensor.offset, seed))
        return Compressed(assemble(layout, layers), state)


@component
class JointSQ(BitAllocation):
    """0, 2, 4 or 8 bits per coordinate, by decreasing gain x^2 (1 - 4^-bits), until `ratio` of 32 bits are used.

    b bits are 2^(b - 1) levels. The budget is for these bits alone; which coordinate has how many is charged as well.
    """

    ratio: Fraction = 0.032
    levels: ClassVar[Sequence[int]] = [2 ** (bits - 1) for bits in WIDTHS[1:]]

    def classes(self, layer: Vector, seed: int) -> BitClasses:
        costs = [high - low for low, high in pairwise(WIDTHS)]
        gains = [(4.0**-low - 4.0**-high) / (high - low) for low, high in pairwise(WIDTHS)]
        edges = [math.sqrt(gains[0] / gain) for gain in gains]
        return allocate_bits(layer, math.ceil(32 * self.ratio * layer.size), edges, costs)


@register("jointsq", version=1)
def jointsq(ratio: Fraction = 0.032) -> Method:
    """0, 2, 4 or 8 bits a coordinate, where they gain most, with error feedback (Xie 2024).

    Args:
        ratio: of 32 bits a coordinate, for the levels; which coordinate has how many comes on top.
    """
    return Method(JointSQ(ratio), feedback="full")


@component
class FineGrained(BitAllocation):
    """The least sum of x^2 4^-bits for `ratio` of 32 bits per coordinate, where b bits are 2^b levels.

    Giving two bits at a time to the largest x^2 4^-bits is the optimum (`greedy`); the authors `anneal`, from bits
    that are dealt out in turn.
    """

    ratio: Fraction = 0.032
    solver: Solver = "greedy"
    levels: ClassVar[Sequence[int]] = [4**half for half in range(1, _WIDEST + 1)]

    def classes(self, layer: Vector, seed: int) -> BitClasses:
        pairs = min(math.ceil(32 * self.ratio * layer.size) // 2, _WIDEST * layer.size)
        if self.solver == "greedy":
            return allocate_bits(layer, 2 * pairs, [4.0**e for e in range(_WIDEST)], [2] * _WIDEST)
        dealt = np.full(layer.size, pairs // max(layer.size, 1), np.uint8)
        dealt[: pairs - int(dealt.sum())] += 1
        anneal(layer, dealt, _SWEEPS, np.uint64(seed))
        return dealt


@register("fedfq", version=1)
def fedfq(ratio: Fraction = 0.032, solver: Solver = "greedy") -> Method:
    """0, 2, 4, 6 or 8 bits a coordinate, for the least error, weighted by examples (FedFQ).

    Args:
        ratio: of 32 bits a coordinate, for the levels; which coordinate has how many comes on top.
        solver: `greedy`, which is exact, or `anneal`, as its authors do.
    """
    return Method(FineGrained(ratio, solver), aggregator=Mean("examples"))


def allocate_bits(layer: Vector, budget: int, edges: Sequence[float], costs: Sequence[int]) -> BitClasses:
    """Return the class of each coordinate: class e costs costs[e - 1] bits more than the one below, and begins where
    magnitudes reach edges[e - 1] times the least threshold that the budget allows. Among equals the first ones."""
    classes = np.zeros(layer.size, np.uint8)
    edge, cost = np.array(edges, np.float64), np.array(costs, np.int64)
    magnitudes = range(1, int(np.abs(layer).max(initial=0).view(np.uint32)) + 1)
    at = bisect_left(magnitudes, True, key=lambda bits: bits_used(layer, _magnitude(bits), edge, cost) <= budget)
    left = budget - bits_used(layer, _magnitude(at + 1), edge, cost)
    assign_classes(layer, _magnitude(at + 1), _magnitude(at), left, edge, cost, classes)
    return classes


def class_levels(
    layer: Vector, classes: BitClasses, counts: Sequence[int], offset: int, seed: int
) -> tuple[Indices, Values]:
    """Return what is sent of a layer: each coordinate of class e > 0 as one of counts[e - 1] levels."""
    signed, steps, tops, base = np.zeros(layer.size, np.int16), list[np.float32](), list[int](), 0
    for number, count in enumerate(counts, 1):
        inside = np.flatnonzero(classes == number).astype(np.uint32)
        chosen = layer[inside]
        step = round_up(float(np.abs(chosen).max(initial=0)) / count)
        if not step:
            continue
        levels = np.empty(inside.size, np.int16)
        most = min(count, int(LARGEST_FLOAT32 // float(step)))
        stochastic_levels(layer, inside, inside.size, np.array([step]), most, np.uint64(seed), offset, levels)
        top = int(np.abs(levels).max(initial=0))
        if top:
            signed[inside] = levels + base * np.sign(levels)
            steps.append(step)
            tops.append(top)
            base += top
    indices = np.flatnonzero(signed).astype(np.uint32)
    return indices + np.uint32(offset), ClassLevels(np.array(steps, np.float32), tuple(tops), signed[indices])


def _magnitude(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))


@jit
def bits_used(layer: Any, threshold: float, edges: Any, costs: Any) -> int:
    """Count the bits that a threshold gives."""
    total = 0
    for i in range(layer.size):
        magnitude = np.float64(abs(layer[i]))
        for e in range(edges.size):
            if magnitude < threshold * edges[e]:
                break
            total += costs[e]
    return total


@jit
def assign_classes(layer: Any, threshold: float, below: float, left: int, edges: Any, costs: Any, classes: Any) -> None:
    """Give bits by a threshold, and what is left by the next lower one, as far as it goes."""
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
def anneal(layer: Any, classes: Any, sweeps: int, seed: Any) -> None:
    """Move pairs of bits between random coordinates, uphill too as long as it is warm."""
    size = layer.size
    energy = 0.0
    for i in range(size):
        energy += np.float64(layer[i]) ** 2
    if energy == 0:
        return
    warmth, drawn = energy / size, 0
    for _ in range(sweeps):
        for _ in range(size):
            one, other = int(uniform(seed, drawn) * size), int(uniform(seed, drawn + 1) * size)
            chance = uniform(seed, drawn + 2)
            drawn += 3
            if classes[one] == 0 or classes[other] == 4 or one == other:
                continue
            loss = np.float64(layer[one]) ** 2 * 15.0 * 16.0 ** -np.float64(classes[one])
            gain = np.float64(layer[other]) ** 2 * (15.0 / 16.0) * 16.0 ** -np.float64(classes[other])
            if loss <= gain or chance < np.exp((gain - loss) / warmth):
                classes[one] -= 1
                classes[other] += 1
        warmth *= 0.5
