"""DeMo (Peng 2024): momentum that stays on the client, but for its largest cosine components."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from fedsparq.compress.feedback import Full
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Count, Decay, component
from fedsparq.payload import CosineBlocks, Dense, Payload, Values
from fedsparq.payload.cosine_blocks import Blocks
from fedsparq.payload.values import LARGEST_FLOAT32
from fedsparq.protocols import Compressed, Compressor, FeedbackTraits, State


@component
class LargestCosines:
    """The `kept` largest coefficients of each block of a layer under the cosine transform, as float32."""

    kept: Count = 32

    def init(self, layout: Layout) -> Arrays:
        return {}

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        values = tuple(self._largest(update[tensor.span], Blocks.of(tensor)) for tensor in layout.parameters)
        return Payload(layout, Dense(layout.size), values), state

    def _largest(self, layer: Vector, blocks: Blocks) -> Values:
        kept = min(self.kept, blocks.size)
        found = blocks.transformed(blocks.cut(layer)).reshape(blocks.count, blocks.size)
        indices = np.sort(np.argpartition(-np.abs(found), kept - 1, axis=1)[:, :kept], axis=1)
        chosen = np.take_along_axis(found, indices, axis=1)
        total = np.abs(chosen).sum(axis=1, keepdims=True)
        chosen *= np.minimum(1, 0.999 * LARGEST_FLOAT32 / np.maximum(total, 1))
        return CosineBlocks(blocks, indices.astype(np.uint16), chosen.astype(np.float32))


@component
class DecoupledMomentum(Full):
    """The update joins a momentum, and what is sent of it is taken away: error feedback whose residual fades."""

    momentum: Decay = 0.999
    traits: ClassVar[FeedbackTraits] = FeedbackTraits(needs_acks=True, is_layerwise=True)

    def compress(
        self, update: Vector, state: State, compressor: Compressor, rng: np.random.Generator, recycle: Vector | None
    ) -> tuple[Payload, State]:
        faded = {"residual": np.float32(self.momentum) * state.feedback["residual"]}
        return super().compress(update, replace(state, feedback=faded), compressor, rng, None)
