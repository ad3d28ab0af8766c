"""FetchSGD (Rothchild 2020): updates as count sketches, whose sum has the server's momentum and error accumulation."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from fedsparq.aggregate.rounds import CountedRound
from fedsparq.layout import Arrays, Layout, Tensor, Vector
from fedsparq.method import Method
from fedsparq.methods.registry import register
from fedsparq.options import Decay, Fraction, component
from fedsparq.payload import Dense, Float32Values, Payload, Sketch, Values
from fedsparq.payload.sketch import MAX_ROWS, sketch, sketch_columns
from fedsparq.protocols import Aggregate, AggregatorTraits, Compressed, CompressorTraits, Stateless, Update


def _odd(rows: int) -> int:
    if rows % 2 == 0:
        raise ValueError("it must be odd, for a median")
    return rows


Rows = Annotated[int, Field(ge=1, le=MAX_ROWS), AfterValidator(_odd)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


@component
class Sketched(Stateless):
    """Each layer as a table of so many rows, with `size` times as many numbers as the layer has coordinates.

    Layers of up to 1,024 coordinates are sent as they are.
    """

    size: Fraction = 0.1
    rows: Rows = 5
    seed: Seed = 0

    @property
    def traits(self) -> CompressorTraits:
        sketches = f"sketches of {self.rows} rows, size {self.size:g} and seed {self.seed}"
        requires = f"a server that adds up {sketches}"
        return CompressorTraits(
            is_contractive=False,
            copies_values=True,
            value_kinds=(Sketch, Float32Values),
            provides=sketches,
            requires=requires,
        )

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        values = list[Values]()
        for tensor in layout.parameters:
            layer, columns = update[tensor.span], sketch_columns(tensor.size, self.size, self.rows)
            if columns:
                values.append(Sketch(tensor.size, self.seed, sketch(layer, self.seed, self.rows, columns)))
            else:
                values.append(Float32Values(layer.copy()))
        return Compressed(Payload(layout, Dense(layout.size), tuple(values)), state)


@component
class SketchedMean:
    """u = momentum u + mean sketch; e = e + u; the largest `fraction` of what e shows is the round's mean update. Where
    its sketch is not 0, u and e become 0: to take it away, as the paper's Algorithm 1 does, lets errors pile up.

    A reply that is not such a sketch does not count.
    """

    size: Fraction = 0.1
    rows: int = 5
    seed: int = 0
    fraction: Fraction = 0.01
    momentum: Decay = 0.0

    @property
    def traits(self) -> AggregatorTraits:
        sketches = f"sketches of {self.rows} rows, size {self.size:g} and seed {self.seed}"
        return AggregatorTraits(requires=sketches, provides=f"a server that adds up {sketches}")

    def init(self, layout: Layout) -> Arrays:
        zeros = {index: np.zeros(self.shape(tensor), np.float32) for index, tensor in enumerate(layout.parameters)}
        return {f"{name}{index}": table for name in ("momentum", "error") for index, table in zeros.items()}

    def open(self, layout: Layout, state: Arrays) -> _Round:
        return _Round(self, layout, state)

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of what is summed of a layer: a table, or the layer itself if it is small."""
        columns = sketch_columns(tensor.size, self.size, self.rows)
        return (self.rows, columns) if columns else (tensor.size,)


class _Round(CountedRound):
    def __init__(self, own: SketchedMean, layout: Layout, state: Arrays) -> None:
        super().__init__(layout, state)
        self._own, self._sums = own, [np.zeros(own.shape(tensor)) for tensor in layout.parameters]

    def add(self, update: Update) -> None:
        tables = self._tables(update.payload)
        self.count(update, float(tables is not None))
        for total, table in zip(self._sums, tables or (), strict=False):
            total += table

    def close(self) -> Aggregate:
        count, state, own = sum(self.shares.values()) or 1.0, dict[str, NDArray[np.float32]](), self._own
        for index, total in enumerate(self._sums):
            momentum = own.momentum * self.state[f"momentum{index}"] + total / count
            state[f"momentum{index}"] = momentum.astype(np.float32)
            state[f"error{index}"] = (self.state[f"error{index}"] + momentum).astype(np.float32)
        mean = self._largest([state[f"error{index}"] for index in range(len(self._sums))])
        for index, tensor in enumerate(self.layout.parameters):
            sent = self._summed(mean[tensor.span], tensor) != 0
            for name in ("momentum", "error"):
                state[f"{name}{index}"][sent] = 0
        return Aggregate(mean, self.shares, self.buffers.mean(), dict(state))

    def _tables(self, payload: Payload) -> list[NDArray[np.float32]] | None:
        """Return what is to be summed, if it is all of the right kind."""
        tables = []
        for tensor, values in zip(self.layout.parameters, payload.values, strict=True):
            if isinstance(values, Sketch) and values.seed == self._own.seed:
                tables.append(values.table)
            elif isinstance(values, Float32Values):
                tables.append(values.data)
            if not tables or tables[-1].shape != self._own.shape(tensor):
                return None
        return tables if len(tables) == len(self._sums) else None

    def _summed(self, layer: Vector, tensor: Tensor) -> NDArray[np.float32]:
        shape = self._own.shape(tensor)
        return sketch(layer, self._own.seed, *shape) if len(shape) == 2 else layer

    def _largest(self, errors: list[NDArray[np.float32]]) -> Vector:
        """Return the largest coordinates of the accumulated error, as a vector with zeros elsewhere."""
        shown, mean = np.empty(self.layout.size, np.float32), np.zeros(self.layout.size, np.float32)
        for tensor, error in zip(self.layout.parameters, errors, strict=True):
            table = error.ndim == 2
            shown[tensor.span] = Sketch(tensor.size, self._own.seed, error).decode() if table else error
        count = min(shown.size, max(1, round(self._own.fraction * shown.size)))
        if count:
            chosen = np.argpartition(-np.abs(shown), count - 1)[:count]
            mean[chosen] = shown[chosen]
        return mean


@register("fetchsgd", version=1)
def fetchsgd(
    size: Fraction = 0.1, rows: Rows = 5, fraction: Fraction = 0.01, momentum: Decay = 0.0, seed: Seed = 0
) -> Method:
    """Count sketches, by whose sum the server finds the largest of what it owes the model (Rothchild 2020).

    Args:
        size: of a layer's sketch, in numbers for each coordinate.
        rows: of the sketch, an odd number.
        fraction: of the coordinates that a round changes.
        momentum: the server's, inside the sketch.
        seed: of the hash functions, the same everywhere.
    """
    return Method(Sketched(size, rows, seed), aggregator=SketchedMean(size, rows, seed, fraction, momentum))
