"""A random part of the coordinates, scaled so that on average it is the whole update."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedsparq.compress.select import kept_count
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Fraction, component
from fedsparq.payload import Float32Values, Payload, Seeded
from fedsparq.payload.values import LARGEST_FLOAT32
from fedsparq.protocols import Compressed, CompressorTraits


@component
class UnbiasedRandom:
    """k of d coordinates times d / k, as float32; both sides draw them from one seed."""

    fraction: Fraction
    traits: ClassVar[CompressorTraits] = CompressorTraits(is_contractive=False)

    def init(self, layout: Layout) -> Arrays:
        return {}

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        drawn = Seeded(layout.size, kept_count(self.fraction, layout.size), int(rng.integers(2**63)))
        indices = drawn.indices
        scale = layout.size / max(drawn.count, 1)
        values = np.clip(scale * update[indices].astype(np.float64), -LARGEST_FLOAT32, LARGEST_FLOAT32)
        cuts = np.searchsorted(indices, layout.bounds[1:-1].astype(np.uint32))
        parts = np.split(values.astype(np.float32), cuts)[: len(layout.parameters)]
        return Payload(layout, drawn, tuple(map(Float32Values, parts))), state
