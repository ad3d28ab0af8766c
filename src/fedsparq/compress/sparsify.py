"""Sparsification: a selector chooses which coordinates are sent, a quantizer how their values are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field

from fedsparq.compress import kernels
from fedsparq.compress.feedback import sum_of
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Decay, Fraction, NonNegative, component
from fedsparq.payload import Dense, Float16Values, Float32Values, Indices, Payload, Seeded, Sparse, Values
from fedsparq.payload.selection import Selection
from fedsparq.payload.values import LARGEST_FLOAT32
from fedsparq.protocols import Compressed, CompressorTraits, RoundContext

Scope = Literal["layer", "global"]
"""What a threshold or a fraction is taken of: each layer, or the whole model."""
Start = Literal["debiased", "zero"]
Rounding = Literal["nearest", "stochastic"]
Rounds = Annotated[int, Field(ge=0)]
Sums = NDArray[np.float64]
"""The sum of magnitudes of each layer."""
Choice = tuple[Selection, Arrays]
"""The coordinates to send, and the next state."""


class Selector(ABC):
    """A rule for which coordinates are sent."""

    is_layerwise: ClassVar[bool] = False
    """Whether what is sent of a layer depends on no other."""

    def init(self, layout: Layout) -> Arrays:
        """Return the state before the first round."""
        return {}

    @abstractmethod
    def select(self, c: Vector, sums: Sums, layout: Layout, state: Arrays, rng: Generator) -> Choice:
        """Return the coordinates to send, and the next state."""


class Quantizer(ABC):
    """A rule for how values are written."""

    is_contractive: ClassVar[bool] = True
    value_kinds: ClassVar[tuple[type[Values], ...]] = ()
    """The kinds of values that it writes; empty: any."""

    @abstractmethod
    def quantize(self, c: Vector, selection: Selection, layout: Layout, seed: int) -> Payload:
        """Return the payload of these coordinates, without those that became zero."""


@component
class SelectAndQuantize:
    """Choose coordinates by one rule, write their values by another."""

    select: Selector
    quantize: Quantizer

    @property
    def traits(self) -> CompressorTraits:
        return CompressorTraits(
            is_contractive=self.quantize.is_contractive,
            has_common_support=isinstance(self.select, All) and isinstance(self.quantize, Float32 | Float16),
            is_layerwise=self.select.is_layerwise,
            copies_values=True,
            wants_context=True,
            value_kinds=self.quantize.value_kinds,
        )

    def init(self, layout: Layout) -> Arrays:
        return self.select.init(layout)

    def compress(
        self, update: Vector, layout: Layout, state: Arrays, rng: Generator, context: RoundContext | None = None
    ) -> Compressed:
        """Return the payload and the next state; without a context, as a user's wrapper calls it, it sums itself."""
        sums = context.layer_sums if context else sum_of(update, None, layout)[1]
        selection, after = self.select.select(update, sums, layout, state, rng)
        return Compressed(self.quantize.quantize(update, selection, layout, int(rng.integers(2**63))), after)


@component
class All(Selector):
    """Every coordinate."""

    is_layerwise: ClassVar[bool] = True

    def select(self, c: Vector, sums: Sums, layout: Layout, state: Arrays, rng: Generator) -> Choice:
        return Dense(layout.size), state


@component
class Random(Selector):
    """A fraction of the coordinates, drawn anew each round from a seed that is sent instead of the indices."""

    fraction: Fraction

    def select(self, c: Vector, sums: Sums, layout: Layout, state: Arrays, rng: Generator) -> Choice:
        return Seeded(layout.size, kept_count(self.fraction, layout.size), int(rng.integers(2**63))), state


@component
class Largest(Selector):
    """The fraction of the coordinates with the largest magnitudes; among equals the first ones."""

    fraction: Fraction
    scope: Scope = "global"

    @property
    def is_layerwise(self) -> bool:  # type: ignore[override]
        return self.scope == "layer"

    def select(self, c: Vector, sums: Sums, layout: Layout, state: Arrays, rng: Generator) -> Choice:
        bounds = layout.bounds if self.scope == "layer" else np.array([0, layout.size])
        parts = (largest(c[start:end], self.fraction) + np.uint32(start) for start, end in pairwise(bounds))
        return Sparse(np.concatenate([np.empty(0, np.uint32), *parts])), state


@component
class WarmUp(Selector):
    """The largest fraction of each layer, which falls from `start` to `fraction` by equal ratios in `rounds` rounds."""

    fraction: Fraction
    start: Fraction
    rounds: Rounds
    is_layerwise: ClassVar[bool] = True

    def init(self, layout: Layout) -> Arrays:
        return {"rounds": np.zeros(1)}

    def select(self, c: Vector, sums: Sums, layout: Layout, state: Arrays, rng: Generator) -> Choice:
        after = {"rounds": state["rounds"] + 1}
        return Largest(self.at(int(state["rounds"][0])), scope="layer").select(c, sums, layout, after, rng)

    def at(self, rounds: int) -> float:
        """Return the fraction that is sent in the round after `rounds` others."""
        if rounds >= self.rounds:
            return self.fraction
        return float(self.start * (self.fraction / self.start) ** (rounds / self.rounds))


@component
class SmoothedMean(Selector):
    """FedSparQ's rule: what reaches an exponential moving average of the layer's mean magnitude.

    `start="debiased"` divides the average by 1 - beta^t, so that round 1 uses the plain mean; `"zero"` does not.
    """

    beta: Decay = 0.9
    multiplier: NonNegative = 1.0
    scope: Scope = "layer"
    start: Start = "debiased"

    @property
    def is_layerwise(self) -> bool:  # type: ignore[override]
        return self.scope == "layer"

    def init(self, layout: Layout) -> Arrays:
        return {"threshold": np.zeros(1 if self.scope == "global" else len(layout.parameters)), "rounds": np.zeros(1)}

    def select(self, c: Vector, sums: Sums, layout: Layout, state: Arrays, rng: Generator) -> Choice:
        rounds, bounds = state["rounds"] + 1, layout.bounds
        if self.scope == "global":
            sums, bounds = np.array([sum(sums.tolist())]), np.array([0, layout.size])
        means = sums / np.maximum(np.diff(bounds), 1)
        average = self.beta * state["threshold"] + (1 - self.beta) * means
        debias = 1 - self.beta ** int(rounds[0]) if self.start == "debiased" else 1.0
        with np.errstate(over="ignore"):
            limits = np.abs(self.multiplier * (average / debias))
        limits = np.where(limits <= LARGEST_FLOAT32, limits, np.inf).astype(np.float32)
        return Sparse(at_least(c, bounds, limits)), {"threshold": average, "rounds": rounds}


@component
class Float32(Quantizer):
    """Values unchanged."""

    value_kinds = (Float32Values,)

    def quantize(self, c: Vector, selection: Selection, layout: Layout, seed: int) -> Payload:
        values = c.copy() if isinstance(selection, Dense) else c[selection.indices]
        return Payload(layout, selection, tuple(Float32Values(values[part]) for part in _parts(selection, layout)))


@component
class Float16(Quantizer):
    """Half precision, saturating at 65504: what does not fit stays in the residual."""

    rounding: Rounding = "nearest"
    value_kinds = (Float16Values,)

    def quantize(self, c: Vector, selection: Selection, layout: Layout, seed: int) -> Payload:
        halves, indices = np.empty(selection.count, np.uint16), None
        if not isinstance(selection, Dense):
            indices = selection.indices
        kernels.take_halves(c, indices, self.rounding == "stochastic", np.uint64(seed), halves)
        return Payload(layout, selection, tuple(Float16Values(halves[part]) for part in _parts(selection, layout)))


def _parts(selection: Selection, layout: Layout) -> list[slice]:
    """Return where each layer's values lie among all values of a selection."""
    return [t.span for t in layout.parameters] if isinstance(selection, Dense) else layout.split(selection.indices)


def assemble(layout: Layout, layers: Iterable[tuple[Indices, Values]]) -> Payload:
    """Build a payload from each layer's indices (in the flat vector) and values."""
    indices, values = zip((np.empty(0, np.uint32), None), *layers, strict=True)
    return Payload(layout, Sparse(np.concatenate(indices)), values[1:])


def largest(c: Vector, fraction: float) -> Indices:
    """Return the indices of exactly `kept_count` largest magnitudes; among equals the first ones."""
    count = kept_count(fraction, c.size)
    if count == 0:
        return np.empty(0, np.uint32)
    limit = kernels.kth_magnitude(c, count)
    indices = at_least(c, np.array([0, c.size]), np.array([limit]))
    if indices.size > count:
        ties = np.flatnonzero(np.abs(c[indices]) == limit)
        indices = np.delete(indices, ties[count - indices.size :])
    return indices


def at_least(c: Vector, bounds: NDArray[np.int64], limits: Vector) -> Indices:
    """Return where the magnitudes of c reach the limit of their layer."""
    count = kernels.count_at_least(c, bounds, limits)
    indices = np.empty(count + kernels.STRIDE, np.uint32)
    kernels.list_at_least(c, bounds, limits, indices)
    return indices[:count]


def kept_count(fraction: float, size: int) -> int:
    """Return how many of `size` coordinates a fraction is: rounded, but at least one if there is any."""
    return min(size, max(1, round(fraction * size)))
