"""Which coordinates are worth sending. A selector yields, layer by layer, a bitmap of those it keeps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress import kernels
from fedsparq.compress.payload import Everything, Positions, Seeded
from fedsparq.compress.state import Compensated, Vector
from fedsparq.errors import OptionError
from fedsparq.layout import Layout

Memory = dict[str, NDArray[np.float64]]
Scope = Literal["layer", "global"]

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Marks:
    """Some coordinates of a layer: bit j of word w stands for coordinate 64 w + j; `count` bits are one."""

    words: NDArray[np.uint64]
    count: int


@dataclass(frozen=True)
class Reaching:
    """The coordinates of a layer whose magnitudes reach a limit. A loop that asks each coordinate needs no bitmap."""

    c: Vector
    limit: np.float32

    @cached_property
    def marks(self) -> Marks:
        """The same as a bitmap; ask before anything is taken away from the layer."""
        return at_least(self.c, self.limit)


@dataclass(frozen=True)
class Choice:
    """What is kept, layer by layer in order, and a shorter way to say it than to list the places, if there is one."""

    layers: Iterator[Marks | Reaching]
    shortcut: Everything | Seeded | None = None


class Selector(Protocol):
    def init(self, layout: Layout) -> Memory:
        """What it remembers before the first round."""

    def select(self, c: Compensated, rounds: int, memory: Memory, rng: np.random.Generator) -> Choice:
        """What to keep in the round after `rounds` others. `memory` is the state's, for it to bring up to date."""


class Forgetful:
    """A selector that remembers nothing."""

    def init(self, layout: Layout) -> Memory:
        return {}


@dataclass(frozen=True)
class All(Forgetful):
    """Every coordinate."""

    def select(self, c: Compensated, rounds: int, memory: Memory, rng: np.random.Generator) -> Choice:
        return Choice(self._layers(c), Everything(c.layout.size))

    def _layers(self, c: Compensated) -> Iterator[Reaching]:
        for index, _ in enumerate(c.layout.parameters):
            c.load(index)
            yield Reaching(c.layer(index), np.float32(0))


@dataclass(frozen=True)
class Random(Forgetful):
    """A fraction of the coordinates, drawn anew each round from a seed that travels instead of the places."""

    fraction: float

    def __post_init__(self) -> None:
        check_fraction(self.fraction)

    def select(self, c: Compensated, rounds: int, memory: Memory, rng: np.random.Generator) -> Choice:
        c.load_all()
        drawn = Seeded(c.layout.size, share(self.fraction, c.layout.size), int(rng.integers(2**63)))
        return Choice(by_layer(drawn.positions(), c.layout), drawn)


@dataclass(frozen=True)
class Largest(Forgetful):
    """The fraction of the coordinates with the largest magnitudes; among equals the first ones."""

    fraction: float
    scope: Scope = "global"

    def __post_init__(self) -> None:
        check_fraction(self.fraction)

    def select(self, c: Compensated, rounds: int, memory: Memory, rng: np.random.Generator) -> Choice:
        if self.scope == "layer":
            return Choice(self._layers(c))
        c.load_all()
        return Choice(by_layer(largest(c.vector, share(self.fraction, c.layout.size)), c.layout))

    def _layers(self, c: Compensated) -> Iterator[Marks]:
        for index, tensor in enumerate(c.layout.parameters):
            c.load(index)
            yield mark(largest(c.layer(index), share(self.fraction, tensor.size)), 0, tensor.size)


@dataclass(frozen=True)
class SmoothedMean:
    """FedSparQ's rule: what reaches an exponential moving average of the layer's mean magnitude.

    `start="debiased"` divides the average by 1 - beta^t, so that round 1 uses the plain mean; `"zero"` does not.
    """

    beta: float = 0.9
    multiplier: float = 1.0
    scope: Scope = "layer"
    start: Literal["debiased", "zero"] = "debiased"

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise OptionError(f"beta={self.beta} is out of range; it must be at least 0 and below 1, such as 0.9")
        if not (self.multiplier >= 0 and math.isfinite(self.multiplier)):
            raise OptionError(f"multiplier={self.multiplier} is out of range; it must be a finite number of at least 0")

    def init(self, layout: Layout) -> Memory:
        return {"threshold": np.zeros(1 if self.scope == "global" else len(layout.parameters))}

    def select(self, c: Compensated, rounds: int, memory: Memory, rng: np.random.Generator) -> Choice:
        return Choice(self._layers(c, rounds, memory["threshold"]))

    def _layers(self, c: Compensated, rounds: int, average: NDArray[np.float64]) -> Iterator[Reaching]:
        if self.scope == "global":
            average[0] = self._smooth(average[0], c.load_all(), c.layout.size)
        for index, tensor in enumerate(c.layout.parameters):
            total = c.load(index)
            if self.scope == "layer":
                average[index] = self._smooth(average[index], total, tensor.size)
            threshold = self._threshold(average[0 if self.scope == "global" else index], rounds + 1)
            yield Reaching(c.layer(index), threshold)

    def _smooth(self, average: float, total: float, size: int) -> float:
        return self.beta * average + (1 - self.beta) * (total / size if size else 0.0)

    def _threshold(self, average: float, rounds: int) -> np.float32:
        if self.start == "debiased":
            average /= 1 - self.beta**rounds
        threshold = abs(self.multiplier * float(average))
        return np.float32(threshold if threshold <= _LARGEST else math.inf)


def at_least(c: Vector, threshold: np.float32) -> Marks:
    """Where the magnitude of c reaches the threshold."""
    words = np.empty((c.size + 63) // 64, np.uint64)
    return Marks(words, kernels.mark_at_least(c, threshold, words))


def largest(c: Vector, count: int) -> Positions:
    """The places of exactly `count` largest magnitudes; among equals the first ones."""
    if count == 0:
        return np.empty(0, np.uint32)
    threshold = kernels.largest_threshold(c, count)
    marks = at_least(c, threshold)
    positions = np.empty(marks.count, np.uint32)
    kernels.list_marked(marks.words, 0, positions)
    if marks.count > count:
        ties = np.flatnonzero(np.abs(c[positions]) == threshold)
        positions = np.delete(positions, ties[count - marks.count :])
    return positions


def mark(positions: Positions, base: int, size: int) -> Marks:
    """Places in the whole vector, as marks in the layer of `size` coordinates at `base`."""
    words = np.empty((size + 63) // 64, np.uint64)
    kernels.mark_places(positions, base, words)
    return Marks(words, positions.size)


def by_layer(positions: Positions, layout: Layout) -> Iterator[Marks]:
    """Places in the whole vector, as marks in each layer."""
    cuts = np.searchsorted(positions, layout.bounds.astype(np.uint32))
    for tensor, (start, end) in zip(layout.parameters, pairwise(cuts), strict=True):
        yield mark(positions[start:end], tensor.offset, tensor.size)


def share(fraction: float, size: int) -> int:
    """How many of `size` coordinates a fraction is: rounded, but at least one if there is any."""
    return min(size, max(1, round(fraction * size)))


def check_fraction(fraction: float) -> None:
    if not 0 < fraction <= 1:
        raise OptionError(f"fraction={fraction} is out of range; it must be above 0 and at most 1, such as 0.1")
