"""A model as it travels whole: its parameters as float32, its statistics and counters exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress.payload import Everything, Floats, Payload
from fedsparq.errors import WireError
from fedsparq.layout import Exact, Layout
from fedsparq.wire.frame import decode, encode


@dataclass(frozen=True)
class Model:
    """Parameters, and what travels beside them; `exact` is None where the layout has only parameters."""

    vector: NDArray[np.float32]
    exact: Exact | None = None

    def encode(self, layout: Layout) -> bytes:
        values = tuple(Floats(self.vector[tensor.span]) for tensor in layout.parameters)
        return encode(Payload(layout, Everything(layout.size), values, self.exact))

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
