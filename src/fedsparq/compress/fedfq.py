"""FedFQ: a bit width for each coordinate, so that the error is least for the bits of a layer."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np

from fedsparq.compiled import jit
from fedsparq.compress.widths import Classes, allot, class_levels
from fedsparq.compress.workspace import Fused, Layered, Workspace, assemble
from fedsparq.layout import Arrays, Vector
from fedsparq.options import Fraction, component
from fedsparq.payload.kernels import uniform
from fedsparq.protocols import Compressed, CompressorTraits

Solver = Literal["greedy", "anneal"]
_WIDEST = 4
"""Widths are 0, 2, 4, 6 and 8 bits."""
_SWEEPS = 20


@component
class FineGrained(Fused):
    """Least sum of x^2 4^-bits for `ratio` of 32 bits a coordinate. What gets b bits goes to one of 2^b levels of its
    class's largest magnitude, at random, unbiased.

    Giving two bits at a time to the largest x^2 4^-bits is the optimum (`greedy`); the authors `anneal`, from bits
    that are dealt out in turn.
    """

    ratio: Fraction = 0.032
    solver: Solver = "greedy"
    traits: ClassVar[CompressorTraits] = CompressorTraits(is_contractive=False, is_layerwise=True)

    def compress_in_place(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Compressed:
        layers, seed = list[Layered](), int(rng.integers(2**63))
        for tensor in workspace.layout.parameters:
            c = workspace.vector[tensor.span]
            classes = self.classes(c, seed)
            indices, values = class_levels(c, classes, [4**e for e in range(1, _WIDEST + 1)], tensor.offset, seed)
            c[indices - np.uint32(tensor.offset)] -= values.decode()
            layers.append((indices, values))
        return assemble(workspace.layout, layers), state

    def classes(self, layer: Vector, seed: int) -> Classes:
        """Half the width of each coordinate."""
        pairs = min(math.ceil(32 * self.ratio * layer.size) // 2, _WIDEST * layer.size)
        if self.solver == "greedy":
            return allot(layer, 2 * pairs, [4.0**e for e in range(_WIDEST)], [2] * _WIDEST)
        dealt = np.full(layer.size, pairs // max(layer.size, 1), np.uint8)
        dealt[: pairs - int(dealt.sum())] += 1
        anneal(layer, dealt, _SWEEPS, np.uint64(seed))
        return dealt


@jit
def anneal(layer: Any, classes: Any, sweeps: int, seed: Any) -> None:
    """Move pairs of bits between random coordinates, uphill too as long as it is warm."""
    size = layer.size
    energy = 0.0
    for i in range(size):
        energy += np.float64(layer[i]) ** 2
    if energy == 0:
        return
    warmth, drawn = energy / size, 0
    for _ in range(sweeps):
        for _ in range(size):
            one, other = int(uniform(seed, drawn) * size), int(uniform(seed, drawn + 1) * size)
            chance = uniform(seed, drawn + 2)
            drawn += 3
            if classes[one] == 0 or classes[other] == 4 or one == other:
                continue
            loss = np.float64(layer[one]) ** 2 * 15.0 * 16.0 ** -np.float64(classes[one])
            gain = np.float64(layer[other]) ** 2 * (15.0 / 16.0) * 16.0 ** -np.float64(classes[other])
            if loss <= gain or chance < np.exp((gain - loss) / warmth):
                classes[one] -= 1
                classes[other] += 1
        warmth *= 0.5
