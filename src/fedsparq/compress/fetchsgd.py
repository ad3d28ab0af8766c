"""FetchSGD (Rothchild 2020), the client's half: updates as count sketches, which the server adds up."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field

from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Fraction, component
from fedsparq.payload import Dense, Float32Values, Payload, Sketch, Values
from fedsparq.payload.sketch import MOST_ROWS, sketch, sketch_columns
from fedsparq.protocols import Compressed, CompressorTraits


def _odd(rows: int) -> int:
    if rows % 2 == 0:
        raise ValueError("it must be odd, for a median")
    return rows


Rows = Annotated[int, Field(ge=1, le=MOST_ROWS), AfterValidator(_odd)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


@component
class Sketched:
    """Each layer as a table of so many rows, with `size` times as many numbers as the layer has coordinates.

    Layers of up to 1,024 coordinates are sent as they are.
    """

    size: Fraction = 0.1
    rows: Rows = 5
    seed: Seed = 0

    @property
    def traits(self) -> CompressorTraits:
        sketches = f"sketches of {self.rows} rows, size {self.size:g} and seed {self.seed}"
        return CompressorTraits(is_contractive=False, provides=sketches, requires=f"a server that adds up {sketches}")

    def init(self, layout: Layout) -> Arrays:
        return {}

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        values = list[Values]()
        for tensor in layout.parameters:
            layer, columns = update[tensor.span], sketch_columns(tensor.size, self.size, self.rows)
            if columns:
                values.append(Sketch(tensor.size, self.seed, sketch(layer, self.seed, self.rows, columns)))
            else:
                values.append(Float32Values(layer.copy()))
        return Payload(layout, Dense(layout.size), tuple(values)), state
