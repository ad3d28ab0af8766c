"""Signs and few magnitudes: sparse ternary compression (Sattler 2019), AdaComp (Chen 2018), EDEN (Vargaftik 2022)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from fedsparq.compiled import jit
from fedsparq.compress.select import Scope, largest
from fedsparq.compress.workspace import Fused, Workspace
from fedsparq.layout import Arrays, Vector
from fedsparq.options import Count, Fraction, component
from fedsparq.payload import Codebook, Dense, Indices, Payload, RotatedSigns, Sparse
from fedsparq.payload.rotated_signs import rotate, rotation_blocks
from fedsparq.protocols import Compressed, CompressorTraits


@component
class SparseTernary(Fused):
    """The largest fraction by magnitude, each sent as its sign; all are rebuilt at their mean magnitude.

    The mean is over what the fraction is taken of: the whole model, or each layer.
    """

    fraction: Fraction
    scope: Scope = "global"

    @property
    def traits(self) -> CompressorTraits:
        return CompressorTraits(is_layerwise=self.scope == "layer")

    def compress_in_place(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Compressed:
        layout = workspace.layout
        bounds = layout.bounds if self.scope == "layer" else np.array([0, layout.size])
        sent, means = [np.empty(0, np.uint32)], []
        for start, end in pairwise(bounds):
            region = workspace.vector[start:end]
            kept = largest(region, self.fraction)
            means.append(np.abs(region[kept]).mean(dtype=np.float64) if kept.size else 0.0)
            sent.append(kept + np.uint32(start))
        magnitudes = means if self.scope == "layer" else means * len(layout.parameters)
        return _signs(workspace, np.concatenate(sent), np.array(magnitudes, np.float32)), state


@component
class AdaComp(Fused):
    """In each bin, what would be its largest value if this round's update counted twice; rebuilt at the mean maximum.

    Bins are of `conv_bin` coordinates in convolutions (tensors of more than two dimensions), else of `bin`.
    """

    conv_bin: Count = 50
    bin: Count = 500
    traits: ClassVar[CompressorTraits] = CompressorTraits(is_layerwise=True)

    def compress_in_place(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Compressed:
        sent, means = [np.empty(0, np.uint32)], []
        for tensor in workspace.layout.parameters:
            bin_size = self.conv_bin if len(tensor.shape) > 2 else self.bin
            indices = np.empty(tensor.size, np.uint32)
            count, mean = bin_maxima(workspace.vector[tensor.span], workspace.update[tensor.span], bin_size, indices)
            sent.append(indices[:count] + np.uint32(tensor.offset))
            means.append(mean)
        return _signs(workspace, np.concatenate(sent), np.array(means, np.float32)), state


@component
class OneBitRotated(Fused):
    """EDEN: the signs of the randomly rotated layer, and per block the scale that makes what is decoded unbiased."""

    traits: ClassVar[CompressorTraits] = CompressorTraits(is_layerwise=True)

    def compress_in_place(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Compressed:
        layout = workspace.layout
        layers = (workspace.vector[tensor.span] for tensor in layout.parameters)
        values = tuple(rotated_signs(layer, int(rng.integers(2**63))) for layer in layers)
        payload = Payload(layout, Dense(layout.size), values)
        payload.add_to(workspace.vector, -1.0)
        return payload, state


def _signs(workspace: Workspace, indices: Indices, magnitudes: Vector) -> Payload:
    """These indices of the whole vector, each as its sign with its layer's magnitude."""
    layout, values = workspace.layout, []
    for magnitude, part in zip(magnitudes, layout.split(indices), strict=True):
        signs = np.where(np.signbit(workspace.vector[indices[part]]), np.int16(-1), np.int16(1))
        values.append(Codebook(np.array([magnitude] if signs.size else [], np.float32), signs))
    payload = Payload(layout, Sparse(indices), tuple(values))
    payload.add_to(workspace.vector, -1.0)
    return payload


def rotated_signs(c: Vector, seed: int) -> RotatedSigns:
    """A layer as signs and scales: energy / sum of magnitudes after the rotation, so that <decoded, c> = |c|^2."""
    scales, signs = [], [np.empty(0, np.bool_)]
    for number, (start, size, padded) in enumerate(rotation_blocks(c.size)):
        x = np.zeros(padded, np.float32)
        x[:size] = c[start : start + size]
        energy = float(np.dot(x, x))
        rotate(x, np.uint64(seed), number)
        total = float(np.abs(x).sum(dtype=np.float64))
        scales.append(energy / total if total > 0 else 0.0)
        signs.append(np.signbit(x))
    negative = np.packbits(np.concatenate(signs), bitorder="little")
    return RotatedSigns(c.size, seed, np.array(scales, np.float32), negative)


@jit
def bin_maxima(c: Any, update: Any, bin_size: int, indices: Any) -> Any:
    """Where |c + update| reaches the largest |c| of its bin (if that is not 0): the count, and the mean maximum."""
    kept = 0
    total = 0.0
    bins = 0
    for start in range(0, c.size, bin_size):
        end = min(start + bin_size, c.size)
        most = np.float32(0)
        for i in range(start, end):
            most = max(most, abs(c[i]))
        total += np.float64(most)
        bins += 1
        if most == 0:
            continue
        for i in range(start, end):
            if abs(c[i] + update[i]) >= most:
                indices[kept] = i
                kept += 1
    return kept, total / max(bins, 1)
