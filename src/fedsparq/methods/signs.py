"""Signs and few magnitudes: sparse ternary compression (Sattler 2019) and AdaComp (Chen 2018)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from fedsparq.compiled import jit
from fedsparq.compress.sparsify import Scope, largest
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.method import Method
from fedsparq.methods.registry import register
from fedsparq.options import Count, Fraction, component
from fedsparq.payload import Codebook, Indices, Payload, Sparse
from fedsparq.protocols import Compressed, CompressorTraits, RoundContext, Stateless


@component
class SparseTernary(Stateless):
    """The largest fraction by magnitude, each sent as its sign; all are rebuilt at their mean magnitude.

    The mean is over what the fraction is taken of: the whole model, or each layer.
    """

    fraction: Fraction
    scope: Scope = "global"

    @property
    def traits(self) -> CompressorTraits:
        return CompressorTraits(is_layerwise=self.scope == "layer", copies_values=True, value_kinds=(Codebook,))

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        bounds = layout.bounds if self.scope == "layer" else np.array([0, layout.size])
        sent, means = [np.empty(0, np.uint32)], []
        for start, end in pairwise(bounds):
            region = update[start:end]
            kept = largest(region, self.fraction)
            means.append(np.abs(region[kept]).mean(dtype=np.float64) if kept.size else 0.0)
            sent.append(kept + np.uint32(start))
        magnitudes = means if self.scope == "layer" else means * len(layout.parameters)
        return Compressed(_signs(update, layout, np.concatenate(sent), np.array(magnitudes, np.float32)), state)


@register("stc", version=1)
def stc(fraction: Fraction = 0.01, scope: Scope = "global") -> Method:
    """The largest by magnitude, as their signs and one mean magnitude, with error feedback (Sattler 2019).

    Args:
        fraction: of the coordinates that is sent.
        scope: of the whole model (`global`), or of each `layer`, which then has a magnitude of its own.
    """
    return Method(SparseTernary(fraction, scope), feedback="full")


@component
class AdaComp(Stateless):
    """In each bin, what would be its largest value if this round's update counted twice; rebuilt at the mean maximum.

    Bins are of `conv_bin` coordinates in convolutions (tensors of more than two dimensions), else of `bin`.
    """

    conv_bin: Count = 50
    bin: Count = 500
    traits: ClassVar[CompressorTraits] = CompressorTraits(
        is_layerwise=True, copies_values=True, wants_context=True, value_kinds=(Codebook,)
    )

    def compress(
        self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator, context: RoundContext
    ) -> Compressed:
        sent, means = [np.empty(0, np.uint32)], []
        for tensor in layout.parameters:
            bin_size = self.conv_bin if len(tensor.shape) > 2 else self.bin
            indices = np.empty(tensor.size, np.uint32)
            count, mean = bin_maxima(update[tensor.span], context.update[tensor.span], bin_size, indices)
            sent.append(indices[:count] + np.uint32(tensor.offset))
            means.append(mean)
        return Compressed(_signs(update, layout, np.concatenate(sent), np.array(means, np.float32)), state)


@register("adacomp", version=1)
def adacomp(conv_bin: Count = 50, bin: Count = 500) -> Method:
    """What could lead its bin if the update counted twice, as signs and one magnitude a layer (Chen 2018).

    Args:
        conv_bin: coordinates in a bin of a convolution.
        bin: coordinates in a bin of any other layer.
    """
    return Method(AdaComp(conv_bin, bin), feedback="full")


def _signs(c: Vector, layout: Layout, indices: Indices, magnitudes: Vector) -> Payload:
    """Return a payload of these indices, each as its sign with its layer's magnitude."""
    values = []
    for magnitude, part in zip(magnitudes, layout.split(indices), strict=True):
        signs = np.where(np.signbit(c[indices[part]]), np.int16(-1), np.int16(1))
        values.append(Codebook(np.array([magnitude] if signs.size else [], np.float32), signs))
    return Payload(layout, Sparse(indices), tuple(values))


@jit
def bin_maxima(c: Any, update: Any, bin_size: int, indices: Any) -> Any:
    """List where |c + update| reaches the largest |c| of its bin (if not 0); return the count, and the mean maximum."""
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
