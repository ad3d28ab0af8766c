"""A model as it travels whole: parameters as float32, or as float16 if that is what they are; buffers exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedsparq.errors import WireError
from fedsparq.layout import Buffers, Layout, Vector
from fedsparq.payload import Dense, Float16Values, Payload
from fedsparq.wire import decode, encode


@dataclass(frozen=True)
class Model:
    """Parameters, and what travels beside them; `buffers` is None where the layout has only parameters."""

    vector: Vector
    buffers: Buffers | None = None

    def encode(self, layout: Layout) -> bytes:
        halved = _halved(self.vector)
        if not np.array_equal(halved, self.vector):
            return encode(Payload.full(layout, self.vector, self.buffers))
        bits = self.vector.astype(np.float16).view(np.uint16)
        values = tuple(Float16Values(bits[tensor.span]) for tensor in layout.parameters)
        return encode(Payload(layout, Dense(layout.size), values, self.buffers))

    def halved(self) -> Model:
        """With parameters rounded to float16, so that it takes half the bytes; those beyond its range stay."""
        halved = _halved(self.vector)
        return replace(self, vector=np.where(np.isfinite(halved), halved, self.vector))

    @classmethod
    def decode(cls, blob: bytes, layout: Layout) -> Model:
        payload = decode(blob, layout)
        if payload.kept != layout.size:
            raise WireError(f"a whole model has {layout.size:,} parameters, this message {payload.kept:,}")
        return cls(payload.dense(), payload.buffers)

    def plus(self, payload: Payload, weight: float = 1.0) -> Model:
        """Return the model after a change; with weight -1, before it."""
        vector = self.vector.copy()
        payload.add_to(vector, weight)
        return replace(self, vector=vector, buffers=payload.buffers or self.buffers)


def _halved(vector: Vector) -> Vector:
    with np.errstate(over="ignore"):
        return vector.astype(np.float16).astype(np.float32)
