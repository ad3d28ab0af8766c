"""The mean of a round's updates, added up as they come."""

from __future__ import annotations

import numpy as np

from fedsparq.aggregate.rounds import CountedRound
from fedsparq.layout import Arrays, Layout
from fedsparq.options import component
from fedsparq.protocols import Aggregate, AggregatorTraits, Stateless, Update, Weighting


@component
class Mean(Stateless):
    """Weighted by each client's number of examples, as FedAvg does, or all alike.

    Updates are added up as they come: memory does not grow with the number of clients.
    """

    weighting: Weighting = "uniform"

    @property
    def traits(self) -> AggregatorTraits:
        return AggregatorTraits(weighting=self.weighting)

    def open(self, layout: Layout, state: Arrays) -> _RunningMean:
        return _RunningMean(layout, state)


class _RunningMean(CountedRound):
    def __init__(self, layout: Layout, state: Arrays) -> None:
        super().__init__(layout, state)
        self._total, self._weight = np.zeros(layout.size, np.float32), 0.0

    def add(self, update: Update) -> None:
        update.payload.add_to(self._total, update.weight)
        self._weight += update.weight
        self.count(update, weight=update.weight)

    def close(self) -> Aggregate:
        return Aggregate(self._total / np.float32(self._weight), self.shares, self.buffers.mean(), self.state)
