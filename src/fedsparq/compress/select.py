"""Which coordinates are worth sending. A selector marks, layer by layer, those it keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsparq.compress import kernels
from fedsparq.compress.workspace import Workspace
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Decay, Fraction, NonNegative, component
from fedsparq.payload import Dense, Indices, Seeded
from fedsparq.payload.values import LARGEST_FLOAT32

Scope = Literal["layer", "global"]
"""What a threshold or a fraction is taken of: each layer, or the whole model."""
Start = Literal["debiased", "zero"]
Rounds = Annotated[int, Field(ge=0)]


Limits = Callable[[slice, NDArray[np.float64]], Vector]
"""The magnitudes that some layers' coordinates must reach to be kept, given the sums of these layers' magnitudes. It is
asked layer by layer in order, or for several at once."""
Marks = Indices | Limits
"""What is kept: a list, or a rule."""
Choice = tuple[Marks, Dense | Seeded | None, Arrays]
"""What is kept; a way to say it without a list of indices, if there is one; the next state, which is complete once
the limits of all layers were asked for."""


class Selector(ABC):
    """A rule for what to keep."""

    layerwise: ClassVar[bool] = False
    """Whether what is kept of a layer depends on no other."""

    def init(self, layout: Layout) -> Arrays:
        """The state before the first round."""
        return {}

    @abstractmethod
    def select(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Choice:
        """What to keep, and the next state."""


@component
class All(Selector):
    """Every coordinate."""

    layerwise: ClassVar[bool] = True

    def select(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Choice:
        return lambda layers, sums: np.zeros(sums.size, np.float32), Dense(workspace.layout.size), state


@component
class Random(Selector):
    """A fraction of the coordinates, drawn anew each round from a seed that travels instead of the indices."""

    fraction: Fraction

    def select(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Choice:
        layout = workspace.layout
        drawn = Seeded(layout.size, kept_count(self.fraction, layout.size), int(rng.integers(2**63)))
        return drawn.indices, drawn, state


@component
class Largest(Selector):
    """The fraction of the coordinates with the largest magnitudes; among equals the first ones."""

    fraction: Fraction
    scope: Scope = "global"

    @property
    def layerwise(self) -> bool:  # type: ignore[override]
        return self.scope == "layer"

    def select(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Choice:
        bounds = workspace.layout.bounds if self.scope == "layer" else np.array([0, workspace.layout.size])
        parts = (
            largest(workspace.vector[start:end], self.fraction) + np.uint32(start) for start, end in pairwise(bounds)
        )
        return np.concatenate([np.empty(0, np.uint32), *parts]), None, state


@component
class WarmUp(Selector):
    """The largest fraction of each layer, which falls from `start` to `fraction` by equal ratios in `rounds` rounds."""

    fraction: Fraction
    start: Fraction
    rounds: Rounds
    layerwise: ClassVar[bool] = True

    def init(self, layout: Layout) -> Arrays:
        return {"rounds": np.zeros(1)}

    def select(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Choice:
        after = {"rounds": state["rounds"] + 1}
        return Largest(self.at(int(state["rounds"][0])), scope="layer").select(workspace, after, rng)

    def at(self, rounds: int) -> float:
        """The fraction sent in the round after `rounds` others."""
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
    def layerwise(self) -> bool:  # type: ignore[override]
        return self.scope == "layer"

    def init(self, layout: Layout) -> Arrays:
        return {"threshold": np.zeros(1 if self.scope == "global" else len(layout.parameters)), "rounds": np.zeros(1)}

    def select(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Choice:
        average, rounds = state["threshold"].copy(), state["rounds"] + 1
        debias = 1 - self.beta ** int(rounds[0]) if self.start == "debiased" else 1.0
        sizes = np.maximum(np.diff(workspace.layout.bounds), 1)
        if self.scope == "global":
            average[:] = self._smoothed(average, np.array(sum(workspace.sums.tolist())), max(workspace.layout.size, 1))

        def limits(layers: slice, sums: NDArray[np.float64]) -> Vector:
            if self.scope == "layer":
                average[layers] = self._smoothed(average[layers], sums, sizes[layers])
            own = average[layers] if self.scope == "layer" else np.repeat(average, sums.size)
            with np.errstate(over="ignore"):
                limit = np.abs(self.multiplier * (own / debias))
            return np.where(limit <= LARGEST_FLOAT32, limit, np.inf).astype(np.float32)

        return limits, None, {"threshold": average, "rounds": rounds}

    def _smoothed(self, average: Any, sums: Any, sizes: Any) -> Any:
        return self.beta * average + (1 - self.beta) * (sums / sizes)


def largest(c: Vector, fraction: float) -> Indices:
    """The indices of exactly `kept_count` largest magnitudes; among equals the first ones."""
    count = kept_count(fraction, c.size)
    if count == 0:
        return np.empty(0, np.uint32)
    limit = kernels.largest_threshold(c, count)
    indices = at_least(c, limit)
    if indices.size > count:
        ties = np.flatnonzero(np.abs(c[indices]) == limit)
        indices = np.delete(indices, ties[count - indices.size :])
    return indices


def at_least(c: Vector, limit: np.float32) -> Indices:
    """Where the magnitude of c reaches the limit."""
    indices = np.empty(c.size + kernels.STRIDE, np.uint32)
    return indices[: kernels.list_at_least(c, limit, indices)].copy()


def kept_count(fraction: float, size: int) -> int:
    """How many of `size` coordinates a fraction is: rounded, but at least one if there is any."""
    return min(size, max(1, round(fraction * size)))


def by_layer(workspace: Workspace, marks: Marks) -> Iterator[Indices]:
    """What is kept of each layer, counted from its start; ask before anything is taken away from it."""
    layout = workspace.layout
    if isinstance(marks, np.ndarray):
        for tensor, part in zip(layout.parameters, layout.split(marks), strict=True):
            yield marks[part] - np.uint32(tensor.offset)
    else:
        for tensor, limit in zip(layout.parameters, marks(slice(None), workspace.sums), strict=True):
            yield at_least(workspace.vector[tensor.span], limit)
