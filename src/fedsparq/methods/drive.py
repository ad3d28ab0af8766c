"""DRIVE (Vargaftik 2021) and EDEN (Vargaftik 2022): the signs of a randomly rotated layer, and one scale a block."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from fedsparq.aggregate import Mean
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.method import Method
from fedsparq.methods.registry import register
from fedsparq.options import component
from fedsparq.payload import Dense, Payload, RotatedSigns
from fedsparq.payload.rotated_signs import rotate, rotation_blocks
from fedsparq.protocols import Compressed, CompressorTraits, Stateless

Scale = Literal["unbiased", "least-error"]


@component
class Drive(Stateless):
    """Of the two scales of the paper, |x|^2 / |Rx|_1 makes what is decoded unbiased, as in `eden`; |Rx|_1 / d leaves
    the least error, which is for error feedback."""

    scale: Scale = "unbiased"
    traits: ClassVar[CompressorTraits] = CompressorTraits(
        is_layerwise=True, copies_values=True, value_kinds=(RotatedSigns,)
    )

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        values = []
        for tensor in layout.parameters:
            layer = update[tensor.span]
            signs = rotated_signs(layer, int(rng.integers(2**63)))
            values.append(signs if self.scale == "unbiased" else _least_error(signs, layer))
        return Compressed(Payload(layout, Dense(layout.size), tuple(values)), state)


@register("drive", version=1)
def drive(scale: Scale = "unbiased") -> Method:
    """One bit a coordinate: the signs of the randomly rotated update, with one scale a block (Vargaftik 2021).

    Args:
        scale: `unbiased`, which is `eden` at one bit, or `least-error`, with error feedback.
    """
    feedback = "off" if scale == "unbiased" else "full"
    return Method(Drive(scale), feedback=feedback, aggregator=Mean("examples"))


@register("eden", version=1)
def eden() -> Method:
    """One bit a coordinate: the signs of the randomly rotated update with an unbiased scale (Vargaftik 2022)."""
    return drive()


def rotated_signs(c: Vector, seed: int) -> RotatedSigns:
    """Return a layer's signs and scales: energy / sum of magnitudes after the rotation, so <decoded, c> = |c|^2."""
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


def _least_error(signs: RotatedSigns, layer: Vector) -> RotatedSigns:
    """Return the signs with scales |Rx|_1 / d = |x|^2 / (d times the unbiased scale)."""
    scales = np.zeros_like(signs.scales)
    for number, (start, size, padded) in enumerate(rotation_blocks(layer.size)):
        block = layer[start : start + size].astype(np.float64)
        if signs.scales[number] > 0:
            scales[number] = float(block @ block) / (float(signs.scales[number]) * padded)
    return replace(signs, scales=scales)
