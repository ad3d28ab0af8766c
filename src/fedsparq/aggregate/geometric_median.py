"""The geometric median (RFA, Pillutla 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsparq.aggregate.rounds import (
    BufferedRound,
    BufferedUpdate,
    Float64s,
    aggregate,
    dots,
    weighted_sum,
)
from fedsparq.layout import Arrays, Layout
from fedsparq.options import Count, Positive, component
from fedsparq.protocols import Aggregate, Stateless


@component
class GeometricMedian(Stateless):
    """The point with the least sum of distances to the updates, by smoothed Weiszfeld steps from zero.

    RFA's authors start from the mean. One endless update moves that at will, and each step only takes a part of the way
    back; zero is a point that nobody moves.

    Args:
        steps: how many.
        smoothing: a distance below this share of the median distance counts as that.
    """

    steps: Count = 3
    smoothing: Positive = 0.1

    def open(self, layout: Layout, state: Arrays) -> BufferedRound[BufferedUpdate]:
        return BufferedRound(self._aggregate, layout, state, BufferedUpdate.of)

    def _aggregate(self, held: Sequence[BufferedUpdate], layout: Layout, state: Arrays) -> Aggregate:
        norms: Float64s = np.array([each.norm for each in held])
        weights = self._weights(norms)
        point = weighted_sum(held, weights, layout)
        for _ in range(self.steps - 1):
            distances = np.sqrt(np.maximum(norms**2 - 2 * dots(held, point) + float(np.dot(point, point)), 0))
            weights = self._weights(distances)
            point = weighted_sum(held, weights, layout)
        return aggregate(held, point, weights, state)

    def _weights(self, distances: Float64s) -> Float64s:
        """Weigh each update by the inverse of its distance; if most lie on the point itself, these alone."""
        least = self.smoothing * float(np.median(distances))
        weights = 1 / np.maximum(distances, least) if least else (distances == 0).astype(np.float64)
        shares: Float64s = weights / weights.sum()
        return shares
