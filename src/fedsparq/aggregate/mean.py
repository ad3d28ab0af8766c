"""The mean of a round's updates, added up as they come."""

from __future__ import annotations

import numpy as np

from fedsparq.aggregate.common import BufferMean
from fedsparq.layout import Arrays, Layout
from fedsparq.options import component
from fedsparq.protocols import Aggregate, AggregatorTraits, Update, Weighting


@component
class Mean:
    """Weighted by each client's number of examples, as FedAvg does, or all alike.

    Updates are added up as they come: memory does not grow with the number of clients.
    """

    weighting: Weighting = "uniform"

    @property
    def traits(self) -> AggregatorTraits:
        return AggregatorTraits(weighting=self.weighting)

    def init(self, layout: Layout) -> Arrays:
        return {}

    def open(self, layout: Layout, state: Arrays) -> _RunningMean:
        return _RunningMean(layout, state)


class _RunningMean:
    def __init__(self, layout: Layout, state: Arrays) -> None:
        self._total, self._weight, self._state = np.zeros(layout.size, np.float32), 0.0, state
        self._buffers = BufferMean()
        self._shares: dict[int, float] = {}

    def add(self, update: Update) -> None:
        update.payload.add_to(self._total, update.weight)
        self._weight += update.weight
        self._buffers.add(update.payload.buffers, update.weight)
        self._shares[update.client] = 1.0

    def close(self) -> Aggregate:
        return Aggregate(self._total / np.float32(self._weight), self._shares, self._buffers.mean(), self._state)
