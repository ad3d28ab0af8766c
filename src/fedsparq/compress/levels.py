"""Levels a step apart: QSGD's (Alistarh 2017), drawn at random with the right mean, and those behind a dead zone."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsparq.compiled import jit
from fedsparq.compress.quantize import Quantizer, Taken
from fedsparq.compress.select import Marks, Scope, by_layer
from fedsparq.compress.workspace import Fused, Layered, Workspace, assemble
from fedsparq.layout import Arrays
from fedsparq.options import Count, Positive, component
from fedsparq.payload import BucketLevels, UniformLevels, Values
from fedsparq.payload.kernels import uniform
from fedsparq.payload.levels import MAX_LEVEL
from fedsparq.payload.values import LARGEST_FLOAT32
from fedsparq.protocols import Compressed, CompressorTraits

LevelCount = Annotated[int, Field(ge=1, le=MAX_LEVEL)]
Norm = Literal["l2", "max"]
Zone = Annotated[float, Field(ge=0.5, le=1)]
"""From 0.5, plain rounding, to 1, rounding towards zero."""


@component
class QSGD(Quantizer):
    """Levels of the norm of what is kept of the layer; the norm is sent once, as the step norm / levels."""

    levels: LevelCount
    contractive: ClassVar[bool] = False

    def quantize(self, workspace: Workspace, marks: Marks, seed: int) -> Taken:
        kept, values = [np.empty(0, np.uint32)], list[Values]()
        for tensor, indices in zip(workspace.layout.parameters, by_layer(workspace, marks), strict=True):
            c = workspace.vector[tensor.span]
            chosen = c[indices]
            step = round_up(float(np.linalg.norm(chosen.astype(np.float64))) / self.levels)
            most = min(self.levels, int(LARGEST_FLOAT32 // float(step))) if step > 0 else 0
            levels = np.empty(indices.size, np.int16)
            stochastic_levels(chosen, chosen.size, np.array([step]), most, tensor.offset, np.uint64(seed), levels)
            nonzero = np.flatnonzero(levels)
            values.append(UniformLevels(step, levels[nonzero]))
            c[indices[nonzero]] -= values[-1].decode()
            kept.append(indices[nonzero] + np.uint32(tensor.offset))
        return np.concatenate(kept), tuple(values)


@component
class BucketedQSGD(Fused):
    """Levels of the norm of each bucket: of `bucket` coordinates in a row of one layer."""

    levels: LevelCount
    bucket: Count
    norm: Norm = "l2"
    traits: ClassVar[CompressorTraits] = CompressorTraits(is_contractive=False, is_layerwise=True)

    def compress_in_place(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Compressed:
        seed, layers = np.uint64(rng.integers(2**63)), list[Layered]()
        for tensor in workspace.layout.parameters:
            c = workspace.vector[tensor.span]
            norms = np.empty(-(-tensor.size // self.bucket))
            bucket_norms(c, self.bucket, self.norm == "max", norms)
            steps = np.array([round_up(norm / self.levels) for norm in norms], np.float32)
            levels = np.empty(tensor.size, np.int16)
            stochastic_levels(c, self.bucket, steps, self.levels, tensor.offset, seed, levels)
            indices = np.flatnonzero(levels).astype(np.uint32)
            values = BucketLevels(self.bucket, steps, indices // np.uint32(self.bucket), levels[indices])
            c[indices] -= values.decode()
            layers.append((indices + np.uint32(tensor.offset), values))
        return assemble(workspace.layout, layers), state


@component
class DeadZone(Fused):
    """Level 0 below `dead_zone` steps, then one more each step; a step is a multiple of the root mean square."""

    step: Positive
    dead_zone: Zone
    scope: Scope = "global"

    @property
    def traits(self) -> CompressorTraits:
        return CompressorTraits(is_layerwise=self.scope == "layer")

    def compress_in_place(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Compressed:
        layout, layers = workspace.layout, list[Layered]()
        parts = [workspace.vector[tensor.span] for tensor in layout.parameters]
        energies = [float(np.dot(c, c)) for c in parts]
        for c, own, tensor in zip(parts, energies, layout.parameters, strict=True):
            energy, size = (own, tensor.size) if self.scope == "layer" else (sum(energies), layout.size)
            step = np.float32(self.step * np.sqrt(energy / max(size, 1)))
            levels = np.zeros(tensor.size, np.int16)
            if step > 0:
                dead_zone_levels(c, np.float64(step), self.dead_zone, MAX_LEVEL, levels)
            indices = np.flatnonzero(levels).astype(np.uint32)
            values = UniformLevels(step, levels[indices])
            c[indices] -= values.decode()
            layers.append((indices + np.uint32(tensor.offset), values))
        return assemble(layout, layers), state


def round_up(value: float) -> np.float32:
    """The least finite float32 that is not below value: as the step, it keeps every level within their number."""
    value = min(value, LARGEST_FLOAT32)
    rounded = np.float32(value)
    return rounded if float(rounded) >= value else np.nextafter(rounded, np.float32(np.inf))


@jit
def bucket_norms(c: Any, bucket: int, largest: bool, norms: Any) -> None:
    """The Euclidean norm, or the largest magnitude, of each bucket."""
    for b in range(norms.size):
        total = 0.0
        most = 0.0
        for i in range(b * bucket, min((b + 1) * bucket, c.size)):
            value = np.float64(abs(c[i]))
            total += value * value
            most = max(most, value)
        norms[b] = most if largest else np.sqrt(total)


@jit
def stochastic_levels(c: Any, bucket: int, steps: Any, most: int, base: Any, seed: Any, levels: Any) -> None:
    """Round every |c| / step of its bucket up or down at random with mean |c| / step."""
    for b in range(steps.size):
        step, start = np.float64(steps[b]), b * bucket
        part, out = c[start : start + bucket], levels[start : start + bucket]
        if step == 0:
            out[:] = 0
            continue
        for i in range(part.size):
            level = min(int(np.float64(abs(part[i])) / step + uniform(seed, base + start + i)), most)
            out[i] = -level if part[i] < 0 else level


@jit
def dead_zone_levels(c: Any, step: Any, zone: Any, most: int, levels: Any) -> None:
    """Whole multiples of step: 0 below zone * step, then one more each step."""
    offset = 1.0 - zone
    for i in range(c.size):
        level = min(int(np.float64(abs(c[i])) / step + offset), most)
        levels[i] = -level if c[i] < 0 else level
