"""The adaptive method: how many coordinates of each layer, in how many levels, so that the bytes buy the most.

All layers are weighed against each other by one Lagrange multiplier: the squared error that a bit must take away to be
sent.
docs/ADAPTIVE.md derives the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, starmap

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress import adaptive_kernels as kernels
from fedsparq.compress.budget import Attempt, ByteBudget
from fedsparq.compress.select import at_least
from fedsparq.compress.workspace import Fused, Layered, Workspace, assemble
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import component
from fedsparq.payload import Codebook, Float16Values, UniformLevels, Values
from fedsparq.payload.levels import MAX_LEVEL
from fedsparq.payload.values import LARGEST_FLOAT32
from fedsparq.protocols import Compressed, Compressor

_SAMPLE = 1 << 15
"""Of a layer of more coordinates than this, about so many are looked at to find its curve."""
_FINEST = 2.0**-30
_LARGEST_HALF = np.float32(65504)
_PRECISION = 0.004
"""Of the logarithm of the Lagrange multiplier."""


@component
class EqualSlope(Fused):
    """Send what gains most for its bits, with one Lagrange multiplier for the whole model, as the budget allows."""

    budget: ByteBudget

    def init(self, layout: Layout) -> Arrays:
        return self.budget.init(layout)

    def compress_in_place(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Compressed:
        layout, c = workspace.layout, workspace.vector
        curves = Curves.of(layout, c)

        def send(bits: float, lagrange: float) -> Attempt:
            plan = curves.plan(bits, lagrange)
            layers = (_layer(c[t.span], t.offset, plan, index) for index, t in enumerate(layout.parameters))
            return Attempt(assemble(layout, layers), plan.bits, plan.lagrange, plan.everything)

        sent, after = self.budget.fill(layout, state, send)
        sent.payload.add_to(c, -1.0)
        return sent.payload, after

    def init_whole(self, size: int) -> Arrays:
        return self.budget.init_whole(size)

    def survey(self, workspace: Workspace) -> Arrays:
        return survey(workspace.layout, workspace.vector)

    def settle(self, surveys: Sequence[Arrays], state: Arrays) -> tuple[list[Compressor], Arrays]:
        plan = Curves.joined(surveys).plan(*self.budget.aim(state))
        parts = [replace(plan, edges=plan.edges[own], fine=plan.fine[own]) for own in shares(surveys)]
        return [PlannedLevels(part) for part in parts], self.budget.after(state, plan.lagrange)


class PlannedLevels(Fused):
    """What a plan sends of some layers."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def compress_in_place(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Compressed:
        layout, c = workspace.layout, workspace.vector
        layers = (_layer(c[t.span], t.offset, self._plan, index) for index, t in enumerate(layout.parameters))
        payload = assemble(layout, layers)
        payload.add_to(c, -1.0)
        return payload, state


@dataclass(frozen=True)
class Plan:
    """For each layer the magnitudes its levels start at: none if it is not sent, the first if they are `step` apart."""

    edges: list[Vector]
    fine: list[bool]
    """Which layers have more levels than a table holds."""
    step: np.float32
    bits: float
    lagrange: float
    everything: bool
    """Whether no multiplier could be low enough to spend what there is."""


def survey(layout: Layout, c: Vector) -> Arrays:
    """All that must be known of some layers to weigh them against others."""
    sizes = np.diff(layout.bounds)
    curves, bases, peaks = np.empty((2, sizes.size, kernels.BINS)), np.empty(sizes.size, np.int64), np.empty(sizes.size)
    kernels.fill_curves(c, layout.bounds, _SAMPLE, curves, bases, peaks)
    return {"sizes": sizes, "curves": curves, "bases": bases, "peaks": peaks}


def shares(surveys: Sequence[Arrays]) -> list[slice]:
    """Which of all layers are those of each survey."""
    ends = np.cumsum([0, *(own["sizes"].size for own in surveys)]).tolist()
    return list(starmap(slice, pairwise(ends)))


class Curves:
    """What each layer's bits would buy."""

    def __init__(self, survey: Arrays) -> None:
        self.sizes, self.curves, self.bases = survey["sizes"], survey["curves"], survey["bases"]
        self.peaks = survey["peaks"]
        """The largest magnitude of each layer."""
        self.largest = float(self.peaks.max(initial=0)) or 1.0

    @classmethod
    def of(cls, layout: Layout, c: Vector) -> Curves:
        return cls(survey(layout, c))

    @classmethod
    def joined(cls, surveys: Sequence[Arrays]) -> Curves:
        """Those of a model from the surveys of its pieces."""
        axes = {"sizes": 0, "curves": 1, "bases": 0, "peaks": 0}
        return cls({name: np.concatenate([own[name] for own in surveys], axis) for name, axis in axes.items()})

    def plan(self, bits: float, lagrange: float) -> Plan:
        """The plan that spends about so many bits; `lagrange` is a first guess at its multiplier, 0 for none."""
        levels = np.zeros(self.sizes.size, np.int64)
        bins = np.zeros((self.sizes.size, kernels.MOST_LEVELS), np.int64)

        def spent(log_lagrange: float) -> float:
            return kernels.rate(self.curves, self.bases, self.sizes, np.exp(log_lagrange), levels, bins)

        finest, coarsest = 2 * np.log(self.largest * _FINEST), 2 * np.log(self.largest)
        guess = np.log(lagrange) if lagrange else coarsest - 5
        log_lagrange, everything = falling_root(spent, bits, guess, finest, coarsest)
        spent(log_lagrange)
        lagrange = float(np.exp(log_lagrange))
        total = kernels.thin(self.curves, self.bases, self.sizes, lagrange, bits, levels, bins)
        starts = ((self.bases[:, None] + bins).astype(np.uint32) << kernels.BIN_SHIFT).view(np.float32)
        counts = np.where(levels == kernels.FINE, 1, levels)
        edges = [start[:count] for start, count in zip(starts, counts, strict=True)]
        step = np.float32(min(kernels.STEP * np.sqrt(lagrange), LARGEST_FLOAT32))
        return Plan(edges, (levels == kernels.FINE).tolist(), step, total, lagrange, everything)


def _layer(c: Vector, base: int, plan: Plan, index: int) -> Layered:
    """What a plan sends of a layer. Nothing is taken away yet."""
    edges = plan.edges[index]
    if edges.size == 0:
        return np.empty(0, np.uint32), Codebook(np.empty(0, np.float32), np.empty(0, np.int16))
    indices = at_least(c, edges[0])
    kept = c[indices]
    return indices + np.uint32(base), _in_steps(kept, plan.step) if plan.fine[index] else _in_levels(kept, edges)


def _in_steps(kept: Vector, step: np.float32) -> Values:
    """As the nearest multiples of the step, but 0; as float16 if the largest is too many steps away."""
    levels = np.rint(kept.astype(np.float64) / step)
    if np.abs(levels).max(initial=0) > MAX_LEVEL:
        return Float16Values(kept.clip(-_LARGEST_HALF, _LARGEST_HALF).astype(np.float16).view(np.uint16))
    levels[levels == 0] = np.where(kept[levels == 0] < 0, -1, 1)
    return UniformLevels(step, levels.astype(np.int16))


def _in_levels(kept: Vector, edges: Vector) -> Values:
    """As levels that start at these magnitudes, each rebuilt at its mean."""
    levels, counts, sums = np.empty(kept.size, np.int16), np.zeros(edges.size, np.int64), np.zeros(edges.size)
    kernels.count_levels(kept, edges, levels, counts, sums)
    return Codebook(_shortened(sums / np.maximum(counts, 1)), levels)


def _shortened(table: NDArray[np.float64]) -> Vector:
    """Rounded to the upper two bytes of float32, which is all that travels."""
    bits = table.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)


def falling_root(
    falling: Callable[[float], float], wanted: float, guess: float, least: float, most: float
) -> tuple[float, bool]:
    """Just before a falling function comes down to what is wanted; and whether it never was above that."""
    high = low = min(max(guess, least), most)
    stride = 0.25
    if falling(low) > wanted:
        while high < most and falling(high) > wanted:
            low, high, stride = high, min(high + stride, most), 2 * stride
    else:
        while low > least:
            high, low, stride = low, max(low - stride, least), 2 * stride
            if falling(low) > wanted:
                break
        else:
            return low, True
    while high - low > _PRECISION:
        middle = (low + high) / 2
        if falling(middle) > wanted:
            low = middle
        else:
            high = middle
    return low, False
