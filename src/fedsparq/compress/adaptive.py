"""The adaptive methods: how many coordinates of each layer, in how many levels, so that the bytes buy the most.

All layers are weighed against each other by one number: a Lagrange multiplier, the squared error that a bit must take
away to be sent, or the step that it stands for. docs/ADAPTIVE.md derives the rules, and tells why clients use unbiased
messages rather than full error feedback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, starmap
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress import adaptive_kernels as kernels
from fedsparq.compress.budget import ByteBudget, Candidate
from fedsparq.compress.levels import stochastic_levels
from fedsparq.compress.sparsify import assemble, at_least
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Decay, component
from fedsparq.payload import Codebook, Float16Values, Indices, Payload, Sparse, UniformLevels, Values
from fedsparq.payload.levels import MAX_LEVEL
from fedsparq.payload.values import LARGEST_FLOAT32
from fedsparq.protocols import Compressed, Compressor, CompressorTraits, Stateless

_SAMPLE = 1 << 15
"""Of a layer of more coordinates than this, about this many are looked at to find its curve."""
_FINEST = 2.0**-30
_LARGEST_HALF = np.float32(65504)
_PRECISION = 0.004
"""Of the logarithm of the Lagrange multiplier, or of the step."""
_MOST_STEPS = 32_000
"""No magnitude is more steps than this, so that every level is an int16."""
_TINY = np.finfo(np.float32).tiny
_REFINEMENT = 0.5
"""To this power of its mean magnitude, a layer's steps become finer."""
_LARGEST_RATIO = 1024.0
"""Differences in mean magnitude beyond this factor change no step."""


@component
class Budgeted:
    """A compressor that measures all layers, then allocates the budget's bits among them.

    A model in pieces is measured piece by piece, and each piece gets a compressor from `allocate`.
    """

    budget: ByteBudget

    def init(self, layout: Layout) -> Arrays:
        return self.budget.init(layout)

    def init_whole(self, size: int) -> Arrays:
        return self.budget.init_whole(size)

    def measure(self, c: Vector, layout: Layout) -> Arrays:
        return measure(c, layout)


@component
class EqualSlope(Budgeted):
    """Send what gains most for its bits, with one Lagrange multiplier for the whole model, as the budget allows."""

    traits: ClassVar[CompressorTraits] = CompressorTraits(
        copies_values=True, value_kinds=(Codebook, UniformLevels, Float16Values)
    )

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        curves = Curves(measure(update, layout))

        def make(bits: float, lagrange: float) -> Candidate:
            plan = curves.plan(bits, lagrange)
            return Candidate(plan.payload(update, layout), plan.bits, plan.lagrange, plan.sends_all)

        best, after = self.budget.fill(layout, state, make)
        return Compressed(best.payload, after)

    def allocate(self, measures: Sequence[Arrays], state: Arrays) -> tuple[list[Compressor], Arrays]:
        plan = Curves.joined(measures).plan(*self.budget.target_bits(state))
        parts = (
            replace(plan, edges=plan.edges[own], is_uniform=plan.is_uniform[own]) for own in layer_slices(measures)
        )
        return list(parts), self.budget.next_state(state, plan.lagrange)


@component
class StochasticLevels(Budgeted):
    """Round every coordinate at random to one of the two steps next to it, unbiased, as far as there are bytes.

    Each layer has its step, the finer the larger its values. What is below `deferred` steps is not drawn at all but
    kept for later rounds; what was drawn is not kept, whether it became a step or zero: on average it was sent.
    """

    deferred: Decay
    traits: ClassVar[CompressorTraits] = CompressorTraits(
        is_contractive=False, copies_values=True, value_kinds=(UniformLevels, Codebook)
    )

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        steps, seed = LayerSteps(Curves(measure(update, layout)), self.deferred), np.uint64(rng.integers(2**63))

        def make(bits: float, guess: float) -> Candidate:
            step, sends_all = steps.spending(bits, guess)
            return Candidate(steps.at(step).payload(update, layout, seed), steps.bits(step), step, sends_all)

        best, after = self.budget.fill(layout, state, make)
        rest = steps.at(best.lagrange).rest(update, layout) if best.lagrange > 0 else update.copy()
        return Compressed(best.payload, after, rest)

    def allocate(self, measures: Sequence[Arrays], state: Arrays) -> tuple[list[Compressor], Arrays]:
        steps = LayerSteps(Curves.joined(measures), self.deferred)
        step, _ = steps.spending(*self.budget.target_bits(state))
        chosen = steps.at(step)
        parts = (replace(chosen, steps=chosen.steps[own]) for own in layer_slices(measures))
        return list(parts), self.budget.next_state(state, step)


@dataclass(frozen=True)
class LevelAllocation(Stateless):
    """For each layer the magnitudes its levels start at: none if it is not sent, the first if they are `step` apart.

    A compressor of these layers.
    """

    edges: list[Vector]
    is_uniform: list[bool]
    """Which layers have more levels than a table holds."""
    step: np.float32
    bits: float
    lagrange: float
    sends_all: bool
    """Whether no multiplier is low enough to spend the bits."""
    traits: ClassVar[CompressorTraits] = EqualSlope.traits

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        return Compressed(self.payload(update, layout), state)

    def payload(self, c: Vector, layout: Layout) -> Payload:
        """Return the payload of c by this plan."""
        layers = (self._layer(c[t.span], t.offset, index) for index, t in enumerate(layout.parameters))
        return assemble(layout, layers)

    def _layer(self, c: Vector, offset: int, index: int) -> tuple[Indices, Values]:
        edges = self.edges[index]
        if edges.size == 0:
            return np.empty(0, np.uint32), Codebook(np.empty(0, np.float32), np.empty(0, np.int16))
        indices = at_least(c, np.array([0, c.size]), edges[:1])
        kept = c[indices]
        return indices + np.uint32(offset), _in_steps(kept, self.step) if self.is_uniform[index] else _in_levels(
            kept, edges
        )


@dataclass(frozen=True)
class FixedSteps(Stateless):
    """The step of each layer. A compressor of these layers."""

    steps: Vector
    deferred: float
    traits: ClassVar[CompressorTraits] = StochasticLevels.traits

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        payload = self.payload(update, layout, np.uint64(rng.integers(2**63)))
        return Compressed(payload, state, self.rest(update, layout))

    def payload(self, c: Vector, layout: Layout, seed: np.uint64) -> Payload:
        """Return c rounded at random to the steps."""
        indices = self.drawn(c, layout)
        levels = np.empty(indices.size, np.int16)
        for step, part in zip(self.steps, layout.split(indices), strict=True):
            own = indices[part]
            stochastic_levels(c, own, own.size, np.array([step]), MAX_LEVEL, seed, 0, levels[part])
        sent = levels != 0
        indices, levels = indices[sent], levels[sent]
        parts = zip(self.steps, layout.split(indices), strict=True)
        return Payload(layout, Sparse(indices), tuple(UniformLevels(step, levels[part]) for step, part in parts))

    def rest(self, c: Vector, layout: Layout) -> Vector:
        """Return what of c is not drawn."""
        rest = c.copy()
        rest[self.drawn(c, layout)] = 0
        return rest

    def drawn(self, c: Vector, layout: Layout) -> Indices:
        """Return the coordinates that are drawn: never where it is 0, which would draw every coordinate for nothing."""
        return at_least(c, layout.bounds, (np.float32(self.deferred) * self.steps).clip(_TINY))


def measure(c: Vector, layout: Layout) -> Arrays:
    """Return all that must be known of some layers to weigh them against others."""
    sizes = np.diff(layout.bounds)
    curves, bases, peaks = (
        np.empty((2, sizes.size, kernels.BINS)),
        np.empty(sizes.size, np.int64),
        np.empty(sizes.size),
    )
    kernels.fill_curves(c, layout.bounds, _SAMPLE, curves, bases, peaks)
    return {"sizes": sizes, "curves": curves, "bases": bases, "peaks": peaks}


def layer_slices(measures: Sequence[Arrays]) -> list[slice]:
    """Return which of all layers are those of each piece."""
    ends = np.cumsum([0, *(own["sizes"].size for own in measures)]).tolist()
    return list(starmap(slice, pairwise(ends)))


class Curves:
    """What each layer's bits would buy."""

    def __init__(self, measured: Arrays) -> None:
        self.sizes, self.curves, self.bases = measured["sizes"], measured["curves"], measured["bases"]
        self.peaks = measured["peaks"]
        """The largest magnitude of each layer."""
        self.largest = float(self.peaks.max(initial=0)) or 1.0

    @classmethod
    def joined(cls, measures: Sequence[Arrays]) -> Curves:
        """Return those of a model from the measures of its pieces."""
        axes = {"sizes": 0, "curves": 1, "bases": 0, "peaks": 0}
        return cls({name: np.concatenate([own[name] for own in measures], axis) for name, axis in axes.items()})

    def plan(self, bits: float, lagrange: float) -> LevelAllocation:
        """Return the plan that spends about `bits`; `lagrange` is a first guess at its multiplier, 0 for none."""
        levels = np.zeros(self.sizes.size, np.int64)
        bins = np.zeros((self.sizes.size, kernels.MAX_LEVELS), np.int64)

        def spent(log_lagrange: float) -> float:
            return kernels.total_bits(self.curves, self.bases, self.sizes, np.exp(log_lagrange), levels, bins)

        finest, coarsest = 2 * np.log(self.largest * _FINEST), 2 * np.log(self.largest)
        guess = np.log(lagrange) if lagrange else coarsest - 5
        log_lagrange, sends_all = bisect_decreasing(spent, bits, guess, finest, coarsest)
        spent(log_lagrange)
        lagrange = float(np.exp(log_lagrange))
        total = kernels.raise_thresholds(self.curves, self.bases, self.sizes, lagrange, bits, levels, bins)
        starts = ((self.bases[:, None] + bins).astype(np.uint32) << kernels.BIN_SHIFT).view(np.float32)
        counts = np.where(levels == kernels.UNIFORM, 1, levels)
        edges = [start[:count] for start, count in zip(starts, counts, strict=True)]
        step = np.float32(min(kernels.STEP * np.sqrt(lagrange), LARGEST_FLOAT32))
        return LevelAllocation(edges, (levels == kernels.UNIFORM).tolist(), step, total, lagrange, sends_all)


class LayerSteps:
    """The step of each layer, as a function of the model's: the larger a layer's values, the finer."""

    def __init__(self, curves: Curves, deferred: float) -> None:
        self._curves, self._deferred = curves, deferred
        sums, sizes = curves.curves[1, :, 0], curves.sizes
        mean = float(sums.sum() / max(sizes.sum(), 1))
        relative = sums / np.maximum(sizes, 1) / (mean or 1.0)
        self._ratios = np.clip(relative, 1 / _LARGEST_RATIO, _LARGEST_RATIO) ** -_REFINEMENT
        self._finest = np.maximum(curves.peaks / _MOST_STEPS, _TINY)

    def at(self, step: float) -> FixedSteps:
        """Return the layers' steps as they are sent, rounded up to the upper half of a float32."""
        raw = np.clip(step * self._ratios, self._finest, 2.0**127).astype(np.float32).view(np.uint32)
        return FixedSteps(((raw + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32), self._deferred)

    def bits(self, step: float) -> float:
        """Return the bits to expect."""
        steps = np.maximum(step * self._ratios, self._finest)
        return kernels.drawn_bits(self._curves.curves, self._curves.bases, self._curves.sizes, steps, self._deferred)

    def spending(self, bits: float, guess: float) -> tuple[float, bool]:
        """Return the step that spends about `bits`, and whether even the finest spends less."""
        finest = (self._finest / self._ratios).min(initial=1.0)
        coarsest = np.log(self._curves.largest) + 25
        start = np.log(guess or self._curves.largest)
        log_step, sends_all = bisect_decreasing(lambda x: self.bits(np.exp(x)), bits, start, np.log(finest), coarsest)
        return float(np.exp(log_step)), sends_all


def _in_steps(kept: Vector, step: np.float32) -> Values:
    """Return the nearest multiples of the step, but 0; float16 if the largest is too many steps away."""
    levels = np.rint(kept.astype(np.float64) / step)
    if np.abs(levels).max(initial=0) > MAX_LEVEL:
        return Float16Values(kept.clip(-_LARGEST_HALF, _LARGEST_HALF).astype(np.float16).view(np.uint16))
    levels[levels == 0] = np.where(kept[levels == 0] < 0, -1, 1)
    return UniformLevels(step, levels.astype(np.int16))


def _in_levels(kept: Vector, edges: Vector) -> Values:
    """Return levels that start at these magnitudes, each rebuilt at its mean."""
    magnitudes = np.abs(kept)
    levels = np.maximum(np.searchsorted(edges, magnitudes, "right"), 1)
    counts = np.bincount(levels, minlength=edges.size + 1)[1:]
    sums = np.bincount(levels, magnitudes.astype(np.float64), edges.size + 1)[1:]
    return Codebook(_round_to_bf16(sums / np.maximum(counts, 1)), np.where(kept < 0, -levels, levels).astype(np.int16))


def _round_to_bf16(table: NDArray[np.float64]) -> Vector:
    """Round to the upper two bytes of float32, which is all that is sent."""
    bits = table.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)


def bisect_decreasing(
    falling: Callable[[float], float], wanted: float, guess: float, least: float, most: float
) -> tuple[float, bool]:
    """Return where a decreasing function is just above `wanted`, and whether it is nowhere."""
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
