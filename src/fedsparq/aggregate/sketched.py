"""FetchSGD (Rothchild 2020), the server's half: momentum and error accumulation inside the sum of sketches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsparq.aggregate.common import BufferMean
from fedsparq.layout import Arrays, Layout, Tensor, Vector
from fedsparq.options import Decay, Fraction, component
from fedsparq.payload import Float32Values, Payload, Sketch
from fedsparq.payload.sketch import sketch, sketch_columns
from fedsparq.protocols import Aggregate, AggregatorTraits, Update


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
        """Of what is added up of a layer: a table, or the layer itself where it is small."""
        columns = sketch_columns(tensor.size, self.size, self.rows)
        return (self.rows, columns) if columns else (tensor.size,)


class _Round:
    def __init__(self, own: SketchedMean, layout: Layout, state: Arrays) -> None:
        self._own, self._layout, self._state = own, layout, state
        self._sums = [np.zeros(own.shape(tensor)) for tensor in layout.parameters]
        self._buffers = BufferMean()
        self._shares: dict[int, float] = {}

    def add(self, update: Update) -> None:
        tables = self._tables(update.payload)
        self._shares[update.client] = float(tables is not None)
        if tables is not None:
            self._buffers.add(update.payload.buffers, 1.0)
            for total, table in zip(self._sums, tables, strict=True):
                total += table

    def close(self) -> Aggregate:
        count, state, own = sum(self._shares.values()) or 1.0, dict[str, NDArray[np.float32]](), self._own
        for index, total in enumerate(self._sums):
            momentum = own.momentum * self._state[f"momentum{index}"] + total / count
            state[f"momentum{index}"] = momentum.astype(np.float32)
            state[f"error{index}"] = (self._state[f"error{index}"] + momentum).astype(np.float32)
        mean = self._largest([state[f"error{index}"] for index in range(len(self._sums))])
        for index, tensor in enumerate(self._layout.parameters):
            sent = self._summed(mean[tensor.span], tensor) != 0
            for name in ("momentum", "error"):
                state[f"{name}{index}"][sent] = 0
        return Aggregate(mean, self._shares, self._buffers.mean(), dict(state))

    def _tables(self, payload: Payload) -> list[NDArray[np.float32]] | None:
        """What is to be added up, if it is all of the right kind."""
        tables = []
        for tensor, values in zip(self._layout.parameters, payload.values, strict=True):
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
        """The largest coordinates that the accumulated error shows, as a vector with zeros elsewhere."""
        shown, mean = np.empty(self._layout.size, np.float32), np.zeros(self._layout.size, np.float32)
        for tensor, error in zip(self._layout.parameters, errors, strict=True):
            table = error.ndim == 2
            shown[tensor.span] = Sketch(tensor.size, self._own.seed, error).decode() if table else error
        count = min(shown.size, max(1, round(self._own.fraction * shown.size)))
        if count:
            chosen = np.argpartition(-np.abs(shown), count - 1)[:count]
            mean[chosen] = shown[chosen]
        return mean
