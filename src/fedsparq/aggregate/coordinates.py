"""The median and the trimmed mean of each coordinate (Yin 2018), for methods whose clients send the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsparq.aggregate.rounds import BufferedRound, BufferedUpdate, aggregate
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import component
from fedsparq.payload import Payload
from fedsparq.protocols import Aggregate, AggregatorTraits, Stateless

_BLOCK = 1 << 16
"""So many coordinates at a time are looked at across all clients."""


@component
class CoordinateMedian(Stateless):
    """The median of each coordinate. All replies count: what a median leaves out has no owner to go back to."""

    traits: ClassVar[AggregatorTraits] = AggregatorTraits(requires_common_support=True)

    def open(self, layout: Layout, state: Arrays) -> BufferedRound[BufferedUpdate]:
        return BufferedRound(self._aggregate, layout, state, BufferedUpdate.of)

    def _aggregate(self, held: Sequence[BufferedUpdate], layout: Layout, state: Arrays) -> Aggregate:
        mean = np.empty(layout.size, np.float32)
        for span, block in _blocks(held, layout):
            mean[span] = self._middle(block)
        return aggregate(held, mean, np.full(len(held), 1 / len(held)), state, plain=self._is_mean(len(held)))

    def _middle(self, block: Vector) -> Vector:
        lower_median: Vector = np.median(block, axis=0).astype(np.float32)
        return lower_median

    def _is_mean(self, count: int) -> bool:
        return False


@component
class TrimmedMean(CoordinateMedian):
    """The mean of each coordinate without its largest and its smallest values.

    Args:
        trim: the share of the values that is left out at either end.
    """

    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2

    def _middle(self, block: Vector) -> Vector:
        cut = self._cut(len(block))
        if cut:
            block = np.partition(block, (cut, len(block) - cut - 1), axis=0)[cut : len(block) - cut]
        lower_median: Vector = block.mean(axis=0, dtype=np.float64).astype(np.float32)
        return lower_median

    def _is_mean(self, count: int) -> bool:
        return self._cut(count) == 0

    def _cut(self, count: int) -> int:
        return min(int(np.ceil(self.trim * count)), (count - 1) // 2)


def _blocks(held: Sequence[BufferedUpdate], layout: Layout) -> Iterator[tuple[slice, Vector]]:
    """Return the values of all clients, some coordinates at a time: float32[clients, coordinates]; 0 if not sent."""
    payloads = [each.payload() for each in held]
    for number, tensor in enumerate(layout.parameters):
        layers = []
        for payload in payloads:
            values = payload.values[number]
            layers.append((values.decode(), None if len(values) == tensor.size else _own_indices(payload, number)))
        for start in range(0, tensor.size, _BLOCK):
            end = min(start + _BLOCK, tensor.size)
            block = np.zeros((len(held), end - start), np.float32)
            for row, (decoded, indices) in zip(block, layers, strict=True):
                if indices is None:
                    row[:] = decoded[start:end]
                else:
                    first, last = np.searchsorted(indices, (start, end))
                    row[indices[first:last] - start] = decoded[first:last]
            yield slice(tensor.offset + start, tensor.offset + end), block


def _own_indices(payload: Payload, number: int) -> NDArray[np.int64]:
    """Return the coordinates of a layer that were sent, counted from its start."""
    layer = list(payload.layers())[number]
    return layer.indices.astype(np.int64) - layer.start
