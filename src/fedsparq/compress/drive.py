"""DRIVE (Vargaftik 2021): the signs of a randomly rotated layer, and one scale a block."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from fedsparq.compress.signs import rotated_signs
from fedsparq.compress.workspace import Fused, Workspace
from fedsparq.layout import Arrays, Vector
from fedsparq.options import component
from fedsparq.payload import Dense, Payload, RotatedSigns
from fedsparq.payload.rotated_signs import rotation_blocks
from fedsparq.protocols import Compressed, CompressorTraits

Scale = Literal["unbiased", "least-error"]


@component
class Drive(Fused):
    """Of the two scales of the paper, |x|^2 / |Rx|_1 makes what is decoded unbiased, as in `eden`; |Rx|_1 / d leaves
    the least error, which is for error feedback."""

    scale: Scale = "unbiased"
    traits: ClassVar[CompressorTraits] = CompressorTraits(is_layerwise=True)

    def compress_in_place(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Compressed:
        layout = workspace.layout
        values = []
        for tensor in layout.parameters:
            layer = workspace.vector[tensor.span]
            signs = rotated_signs(layer, int(rng.integers(2**63)))
            values.append(signs if self.scale == "unbiased" else _least_error(signs, layer))
        payload = Payload(layout, Dense(layout.size), tuple(values))
        payload.add_to(workspace.vector, -1.0)
        return payload, state


def _least_error(signs: RotatedSigns, layer: Vector) -> RotatedSigns:
    """|Rx|_1 / d = |x|^2 / (d times the unbiased scale)."""
    scales = np.zeros_like(signs.scales)
    for number, (start, size, padded) in enumerate(rotation_blocks(layer.size)):
        block = layer[start : start + size].astype(np.float64)
        if signs.scales[number] > 0:
            scales[number] = float(block @ block) / (float(signs.scales[number]) * padded)
    return replace(signs, scales=scales)
