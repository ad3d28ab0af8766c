"""JointSQ (Xie 2024): one budget of bits a layer for sparsification and quantization together."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import ClassVar

import numpy as np

from fedsparq.compress.widths import allot, class_levels
from fedsparq.compress.workspace import Fused, Layered, Workspace, assemble
from fedsparq.layout import Arrays
from fedsparq.options import Fraction, component
from fedsparq.protocols import Compressed, CompressorTraits

WIDTHS = (0, 2, 4, 8)


@component
class JointSQ(Fused):
    """0, 2, 4 or 8 bits a coordinate, given by falling gain x^2 (1 - 4^-bits) until `ratio` of 32 bits are spent.

    What gets b bits goes to one of 2^(b - 1) levels of its class's largest magnitude, at random, unbiased. The budget
    is for these bits alone; which coordinate has how many is told beside them, and charged.
    """

    ratio: Fraction = 0.032
    traits: ClassVar[CompressorTraits] = CompressorTraits(is_contractive=False, is_layerwise=True)

    def compress_in_place(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Compressed:
        layers, seed = list[Layered](), int(rng.integers(2**63))
        costs = [high - low for low, high in pairwise(WIDTHS)]
        gains = [(4.0**-low - 4.0**-high) / (high - low) for low, high in pairwise(WIDTHS)]
        edges = [math.sqrt(gains[0] / gain) for gain in gains]
        for tensor in workspace.layout.parameters:
            c = workspace.vector[tensor.span]
            classes = allot(c, math.ceil(32 * self.ratio * tensor.size), edges, costs)
            indices, values = class_levels(c, classes, [2 ** (bits - 1) for bits in WIDTHS[1:]], tensor.offset, seed)
            c[indices - np.uint32(tensor.offset)] -= values.decode()
            layers.append((indices, values))
        return assemble(workspace.layout, layers), state
