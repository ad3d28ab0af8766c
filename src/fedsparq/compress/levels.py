"""Levels a step apart: QSGD's (Alistarh 2017), drawn at random with the right mean, and those behind a dead zone."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsparq.compiled import jit
from fedsparq.compress.sparsify import Quantizer, Scope, assemble
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Count, Positive, component
from fedsparq.payload import BucketLevels, Dense, Indices, Payload, UniformLevels, Values
from fedsparq.payload.kernels import uniform
from fedsparq.payload.levels import MAX_LEVEL
from fedsparq.payload.selection import Selection
from fedsparq.payload.values import LARGEST_FLOAT32
from fedsparq.protocols import Compressed, CompressorTraits, Stateless

LevelCount = Annotated[int, Field(ge=1, le=MAX_LEVEL)]
Norm = Literal["l2", "max"]
Zone = Annotated[float, Field(ge=0.5, le=1)]
"""From 0.5, plain rounding, to 1, rounding towards zero."""


@component
class QSGD(Quantizer):
    """Levels of the norm of what is sent of the layer; the norm is sent once, as the step norm / levels."""

    levels: LevelCount
    is_contractive: ClassVar[bool] = False
    value_kinds = (UniformLevels,)

    def quantize(self, c: Vector, selection: Selection, layout: Layout, seed: int) -> Payload:
        indices, layers = selection.indices, list[tuple[Indices, Values]]()
        for tensor, part in zip(layout.parameters, layout.split(indices), strict=True):
            chosen = c[tensor.span] if isinstance(selection, Dense) else c[indices[part]]
            step = round_up(float(np.linalg.norm(chosen.astype(np.float64))) / self.levels)
            most = min(self.levels, int(LARGEST_FLOAT32 // float(step))) if step > 0 else 0
            levels = np.empty(chosen.size, np.int16)
            steps = np.array([step])
            stochastic_levels(chosen, None, chosen.size, steps, most, np.uint64(seed), tensor.offset, levels)
            nonzero = np.flatnonzero(levels)
            layers.append((indices[part][nonzero], UniformLevels(step, levels[nonzero])))
        payload = assemble(layout, layers)
        return replace(payload, selection=selection) if payload.kept == selection.count else payload


@component
class BucketedQSGD(Stateless):
    """Levels of the norm of each bucket: of `bucket` coordinates in a row of one layer."""

    levels: LevelCount
    bucket: Count
    norm: Norm = "l2"
    traits: ClassVar[CompressorTraits] = CompressorTraits(
        is_contractive=False, is_layerwise=True, copies_values=True, value_kinds=(BucketLevels,)
    )

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        seed, layers = np.uint64(rng.integers(2**63)), list[tuple[Indices, Values]]()
        for tensor in layout.parameters:
            c = update[tensor.span]
            norms = np.empty(-(-tensor.size // self.bucket))
            bucket_norms(c, self.bucket, self.norm == "max", norms)
            steps = np.array([round_up(norm / self.levels) for norm in norms], np.float32)
            levels = np.empty(tensor.size, np.int16)
            stochastic_levels(c, None, self.bucket, steps, self.levels, seed, tensor.offset, levels)
            indices = np.flatnonzero(levels).astype(np.uint32)
            values = BucketLevels(self.bucket, steps, indices // np.uint32(self.bucket), levels[indices])
            layers.append((indices + np.uint32(tensor.offset), values))
        return Compressed(assemble(layout, layers), state)


@component
class DeadZone(Stateless):
    """Level 0 below `dead_zone` steps, then one more each step; a step is a multiple of the root mean square."""

    step: Positive
    dead_zone: Zone
    scope: Scope = "global"

    @property
    def traits(self) -> CompressorTraits:
        return CompressorTraits(is_layerwise=self.scope == "layer", copies_values=True, value_kinds=(UniformLevels,))

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        layers, parts = list[tuple[Indices, Values]](), [update[tensor.span] for tensor in layout.parameters]
        energies = [float(np.dot(c, c)) for c in parts]
        for c, own, tensor in zip(parts, energies, layout.parameters, strict=True):
            energy, size = (own, tensor.size) if self.scope == "layer" else (sum(energies), layout.size)
            step = np.float32(self.step * np.sqrt(energy / max(size, 1)))
            levels = dead_zone_levels(c, step, self.dead_zone)
            indices = np.flatnonzero(levels).astype(np.uint32)
            layers.append((indices + np.uint32(tensor.offset), UniformLevels(step, levels[indices])))
        return Compressed(assemble(layout, layers), state)


def round_up(value: float) -> np.float32:
    """Return the least finite float32 that is not below value: as a step, it keeps every level within their number."""
    value = min(value, LARGEST_FLOAT32)
    rounded = np.float32(value)
    return rounded if float(rounded) >= value else np.nextafter(rounded, np.float32(np.inf))


@jit
def bucket_norms(c: Any, bucket: int, largest: bool, norms: Any) -> None:
    """Compute the Euclidean norm, or the largest magnitude, of each bucket."""
    for b in range(norms.size):
        total = 0.0
        most = 0.0
        for i in range(b * bucket, min((b + 1) * bucket, c.size)):
            value = np.float64(abs(c[i]))
            total += value * value
            most = max(most, value)
        norms[b] = most if largest else np.sqrt(total)


@jit
def stochastic_levels(
    c: Any, indices: Any, bucket: int, steps: Any, most: int, seed: Any, offset: int, levels: Any
) -> None:
    """Round c / step at these indices, or everywhere if they are None, up or down at random, with mean c / step.

    Each `bucket` values have their own step. What is drawn for a value depends on the seed and on offset + index.
    """
    for b in range(steps.size):
        step = np.float64(steps[b])
        for n in range(b * bucket, min((b + 1) * bucket, levels.size)):
            i = n if indices is None else indices[n]
            level = min(int(np.float64(abs(c[i])) / step + uniform(seed, offset + i)), most) if step > 0 else 0
            levels[n] = -level if c[i] < 0 else level


def dead_zone_levels(c: Vector, step: np.float32, zone: float) -> NDArray[np.int16]:
    """Return integer multiples of step: 0 below zone * step, then one more each step."""
    if step == 0:
        return np.zeros(c.size, np.int16)
    levels = np.minimum(np.abs(c).astype(np.float64) / np.float64(step) + (1 - zone), MAX_LEVEL).astype(np.int16)
    return np.where(c < 0, -levels, levels)
