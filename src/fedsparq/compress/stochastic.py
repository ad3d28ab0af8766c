"""The adaptive method as clients use it: each message is unbiased, but for what is deferred.

docs/ADAPTIVE.md derives the rule, and tells why it suits clients better than full error feedback.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fedsparq.compress import stochastic_kernels as kernels
from fedsparq.compress.adaptive import Curves, falling_root, shares, survey
from fedsparq.compress.budget import Attempt, ByteBudget
from fedsparq.compress.workspace import Fused, Workspace
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Decay, component
from fedsparq.payload import Payload, Sparse, UniformLevels
from fedsparq.protocols import Compressed, Compressor, CompressorTraits

_MOST_STEPS = 32_000
"""No magnitude is more steps than this, so that every level is an int16."""
_TINY = np.finfo(np.float32).tiny
_REFINEMENT = 0.5
"""To this power of its mean magnitude, a layer's steps become finer."""
_LARGEST_RATIO = 1024.0
"""Differences in mean magnitude beyond this factor change no step."""


@component
class StochasticLevels(Fused):
    """Round every coordinate at random to one of the two steps beside it, unbiased, as far as there are bytes.

    Each layer has its step, the finer the larger its values. What is below `deferred` steps is not drawn at all but
    kept for later rounds; what was drawn is not kept, whether it became a step or zero: on average it was sent.
    """

    budget: ByteBudget
    deferred: Decay
    traits: ClassVar[CompressorTraits] = CompressorTraits(is_contractive=False)
    subtracts: ClassVar[bool] = False

    def init(self, layout: Layout) -> Arrays:
        return self.budget.init(layout)

    def compress_in_place(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Compressed:
        layout, c = workspace.layout, workspace.vector
        steps, seed = _LayerSteps(Curves.of(layout, c), self.deferred), np.uint64(rng.integers(2**63))

        def send(bits: float, guess: float) -> Attempt:
            step, everything = steps.spending(bits, guess)
            return Attempt(_draw(layout, c, steps.at(step), self.deferred, seed), steps.bits(step), step, everything)

        sent, after = self.budget.fill(layout, state, send)
        if sent.lagrange > 0:
            kernels.clear(c, layout.bounds, _leasts(steps.at(sent.lagrange), self.deferred))
        return sent.payload, after

    def init_whole(self, size: int) -> Arrays:
        return self.budget.init_whole(size)

    def survey(self, workspace: Workspace) -> Arrays:
        return survey(workspace.layout, workspace.vector)

    def settle(self, surveys: Sequence[Arrays], state: Arrays) -> tuple[list[Compressor], Arrays]:
        steps = _LayerSteps(Curves.joined(surveys), self.deferred)
        step, _ = steps.spending(*self.budget.aim(state))
        chosen = steps.at(step)
        return [GivenSteps(chosen[own], self.deferred) for own in shares(surveys)], self.budget.after(state, step)


class GivenSteps(Fused):
    """The same with the steps of all layers given."""

    traits: ClassVar[CompressorTraits] = CompressorTraits(is_contractive=False)
    subtracts: ClassVar[bool] = False

    def __init__(self, steps: Vector, deferred: float) -> None:
        self._steps, self._deferred = steps, deferred

    def compress_in_place(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Compressed:
        layout, c = workspace.layout, workspace.vector
        payload = _draw(layout, c, self._steps, self._deferred, np.uint64(rng.integers(2**63)))
        kernels.clear(c, layout.bounds, _leasts(self._steps, self._deferred))
        return payload, state


def _leasts(steps: Vector, deferred: float) -> Vector:
    """The least magnitudes that are drawn: never 0, which would draw every coordinate for nothing."""
    return (np.float32(deferred) * steps).clip(_TINY)


def _draw(layout: Layout, c: Vector, steps: Vector, deferred: float, seed: np.uint64) -> Payload:
    indices, levels = np.empty(layout.size, np.uint32), np.empty(layout.size, np.int16)
    count = kernels.draw(c, layout.bounds, steps, _leasts(steps, deferred), seed, indices, levels)
    indices.resize(count, refcheck=False)
    levels.resize(count, refcheck=False)
    values = (UniformLevels(step, levels[part]) for step, part in zip(steps, layout.split(indices), strict=True))
    return Payload(layout, Sparse(indices), tuple(values))


class _LayerSteps:
    """The step of each layer, as a function of the model's: the larger a layer's values, the finer."""

    def __init__(self, curves: Curves, deferred: float) -> None:
        self._curves, self._deferred = curves, deferred
        sums, sizes = curves.curves[1, :, 0], curves.sizes
        mean = float(sums.sum() / max(sizes.sum(), 1))
        relative = sums / np.maximum(sizes, 1) / (mean or 1.0)
        self._ratios = np.clip(relative, 1 / _LARGEST_RATIO, _LARGEST_RATIO) ** -_REFINEMENT
        self._finest = np.maximum(curves.peaks / _MOST_STEPS, _TINY)

    def at(self, step: float) -> Vector:
        """The layers' steps as they travel, rounded up to the upper half of a float32."""
        raw = np.clip(step * self._ratios, self._finest, 2.0**127).astype(np.float32).view(np.uint32)
        return ((raw + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)

    def bits(self, step: float) -> float:
        """The bits to expect."""
        steps = np.maximum(step * self._ratios, self._finest)
        return kernels.drawn_bits(self._curves.curves, self._curves.bases, self._curves.sizes, steps, self._deferred)

    def spending(self, bits: float, guess: float) -> tuple[float, bool]:
        """The step that spends about so many bits, and whether even the finest spends less."""
        finest = (self._finest / self._ratios).min(initial=1.0)
        coarsest = np.log(self._curves.largest) + 25
        start = np.log(guess or self._curves.largest)
        log_step, everything = falling_root(lambda x: self.bits(np.exp(x)), bits, start, np.log(finest), coarsest)
        return float(np.exp(log_step)), everything
