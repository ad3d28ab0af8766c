"""DeMo (Peng 2024): momentum that stays on the client, except for its largest cosine components."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from fedsparq.compress.feedback import ErrorFeedback
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.method import Method
from fedsparq.methods.registry import register
from fedsparq.optimize import Sign
from fedsparq.options import Count, Decay, Positive, component
from fedsparq.payload import CosineBlocks, Dense, Payload, Values
from fedsparq.payload.cosine_blocks import Blocks
from fedsparq.payload.values import LARGEST_FLOAT32
from fedsparq.protocols import AnyCompressor, Compressed, CompressorTraits, FeedbackTraits, State, Stateless


@component
class LargestCosines(Stateless):
    """The `kept` largest coefficients of each block of a layer under the cosine transform, as float32."""

    kept: Count = 32
    traits: ClassVar[CompressorTraits] = CompressorTraits(copies_values=True, value_kinds=(CosineBlocks,))

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        values = tuple(self._largest(update[tensor.span], Blocks.of(tensor)) for tensor in layout.parameters)
        return Compressed(Payload(layout, Dense(layout.size), values), state)

    def _largest(self, layer: Vector, blocks: Blocks) -> Values:
        kept = min(self.kept, blocks.size)
        found = blocks.transformed(blocks.cut(layer)).reshape(blocks.count, blocks.size)
        indices = np.sort(np.argpartition(-np.abs(found), kept - 1, axis=1)[:, :kept], axis=1)
        chosen = np.take_along_axis(found, indices, axis=1)
        total = np.abs(chosen).sum(axis=1, keepdims=True)
        chosen *= np.minimum(1, 0.999 * LARGEST_FLOAT32 / np.maximum(total, 1))
        return CosineBlocks(blocks, indices.astype(np.uint16), chosen.astype(np.float32))


@component
class DecoupledMomentum(ErrorFeedback):
    """The update joins a momentum, and what is sent of it is subtracted: error feedback whose residual fades."""

    momentum: Decay = 0.999
    traits: ClassVar[FeedbackTraits] = FeedbackTraits(needs_acks=True, is_layerwise=True)

    def compress(
        self, update: Vector, state: State, compressor: AnyCompressor, rng: np.random.Generator
    ) -> tuple[Payload, State]:
        faded = {"residual": np.float32(self.momentum) * state.feedback["residual"]}
        return super().compress(update, replace(state, feedback=faded), compressor, rng)


@register("demo", version=1)
def demo(kept: Count = 32, momentum: Decay = 0.999, lr: Positive = 0.003) -> Method:
    """The largest cosine components of a momentum that stays on the client; the server steps by signs (Peng 2024).

    Args:
        kept: coefficients of each block of at most 64 x 64, as float32.
        momentum: how much of the momentum is left after a round.
        lr: how far the server moves every coordinate.
    """
    return Method(LargestCosines(kept), DecoupledMomentum(momentum), optimizer=Sign(lr))
