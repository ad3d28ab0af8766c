"""A model as it travels whole: parameters as float32, or as float16 if that is what they are; the rest exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress.payload import Everything, Floats, Halves, Payload, Values
from fedsparq.errors import WireError
from fedsparq.layout import Exact, Layout
from fedsparq.wire.frame import decode, encode


@dataclass(frozen=True)
class Model:
    """Parameters, and what travels beside them; `exact` is None where the layout has only parameters."""

    vector: NDArray[np.float32]
    exact: Exact | None = None

    def encode(self, layout: Layout) -> bytes:
        vectors = [self.vector[tensor.span] for tensor in layout.parameters]
        if all(np.array_equal(_halved(vector), vector) for vector in vectors):
            values: tuple[Values, ...] = tuple(Halves(vector.astype(np.float16).view(np.uint16)) for vector in vectors)
        else:
            values = tuple(map(Floats, vectors))
        return encode(Payload(layout, Everything(layout.size), values, self.exact))

    def halved(self) -> Model:
        """With parameters rounded to float16, so that it takes half the bytes; those beyond its range stay."""
        halved = _halved(self.vector)
        return replace(self, vector=np.where(np.isfinite(halved), halved, self.vector))

    @classmethod
    def decode(cls, blob: bytes, layout: Layout) -> Model:
        payload = decode(blob, layout)
        if payload.kept != layout.size:
            raise WireError(f"a whole model has {layout.size:,} parameters, this message {payload.kept:,}")
        return cls(payload.dense(), payload.exact)

    def plus(self, payload: Payload) -> Model:
        """The model after a change."""
        vector = self.vector.copy()
        payload.add_to(vector, 1.0)
        return replace(self, vector=vector, exact=payload.exact or self.exact)


def _halved(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return vector.astype(np.float16).astype(np.float32)
