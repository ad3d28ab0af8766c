"""SOBAA, the client's half: signs at indices that all clients of a round draw alike, so that a channel can add them."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import numpy as np

from fedsparq.compress.select import kept_count
from fedsparq.compress.workspace import Fused, Workspace
from fedsparq.layout import Arrays, Layout
from fedsparq.options import Fraction, component
from fedsparq.payload import Codebook, Payload, Seeded
from fedsparq.payload.kernels import random_bits
from fedsparq.protocols import Compressed, CompressorTraits


@component
class CommonSigns(Fused):
    """The signs of a fraction of the coordinates, which follow from the round's number; and their mean magnitude."""

    fraction: Fraction = 0.2
    traits: ClassVar[CompressorTraits] = CompressorTraits(
        draws_per_round=True, provides="signs on a common support", requires="a channel that adds up signs"
    )

    def init(self, layout: Layout) -> Arrays:
        return {"round": np.zeros(1, np.int64)}

    def begin(self, state: Arrays, round: int) -> Arrays:
        return {"round": np.array([round - 1])}

    def compress_in_place(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Compressed:
        layout, number = workspace.layout, int(state["round"][0]) + 1
        drawn = Seeded(layout.size, kept_count(self.fraction, layout.size), int(random_bits(np.uint64(number), 0)))
        chosen = workspace.vector[drawn.indices]
        magnitude = np.abs(chosen).mean(dtype=np.float64) if chosen.size else 0.0
        signs = np.where(np.signbit(chosen), np.int16(-1), np.int16(1))
        table, values = np.array([magnitude], np.float32), list[Codebook]()
        for start, end in pairwise(np.searchsorted(drawn.indices, layout.bounds)):
            values.append(Codebook(table if end > start else table[:0], signs[start:end]))
        payload = Payload(layout, drawn, tuple(values))
        payload.add_to(workspace.vector, -1.0)
        return payload, {"round": np.array([number])}
