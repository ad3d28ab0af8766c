"""The mean of statistics such as BatchNorm's, and what stands in for it where some clients may be malicious."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.layout import Buffers

_RADIUS = 2.0
"""As a multiple of the median distance from the coordinate-wise median: an honest client is rarely farther."""


@dataclass
class BufferMean:
    """Of what travels beside the parameters: of statistics the weighted mean, of counters the largest."""

    weight: float = 0.0
    statistics: NDArray[np.float64] | None = None
    counters: NDArray[np.int64] | None = None

    def add(self, buffers: Buffers | None, weight: float) -> None:
        if buffers is None or not weight:
            return
        self.weight += weight
        scaled = weight * buffers.statistics.astype(np.float64)
        self.statistics = scaled if self.statistics is None else self.statistics + scaled
        self.counters = buffers.counters if self.counters is None else np.maximum(self.counters, buffers.counters)

    def mean(self) -> Buffers | None:
        if self.statistics is None or self.counters is None:
            return None
        return Buffers((self.statistics / self.weight).astype(np.float32), self.counters)


def robust_buffers(
    buffers: Sequence[Buffers | None], weights: NDArray[np.float64], plain: bool = False
) -> Buffers | None:
    """Return `robust_mean` of statistics, and the median of counters. `plain`: the mean, and the largest."""
    found = [(each, weight) for each, weight in zip(buffers, weights, strict=True) if each is not None]
    if not found:
        return None
    statistics = np.stack([each.statistics for each, _ in found]).astype(np.float64)
    counters = np.stack([each.counters for each, _ in found])
    own = np.array([weight for _, weight in found])
    mean = weighted_mean(statistics, own) if plain else robust_mean(statistics, own)
    return Buffers(mean.astype(np.float32), counters.max(axis=0) if plain else lower_median(counters))


def robust_mean(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of rows by weight, each moved towards their coordinate-wise median until it is no farther from it
    than twice the median distance.

    Every client sends all statistics, so a coordinate-wise median makes sense. What is moved lies between a client's
    row and the median, so a variance stays one.
    """
    center = np.median(values, axis=0)
    apart = values - center
    distances = np.linalg.norm(apart, axis=1)
    radius = _RADIUS * np.median(distances)
    kept = np.minimum(1.0, np.divide(radius, distances, out=np.ones_like(distances), where=distances > 0))
    return center + weighted_mean(apart * kept[:, None], weights)


def weighted_mean(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of rows by weight; uniform if no weight is above zero."""
    total = weights.sum()
    share = weights / total if total > 0 else np.full(len(weights), 1 / len(weights))
    mean: NDArray[np.float64] = share @ values
    return mean


def lower_median(counters: NDArray[Any]) -> NDArray[Any]:
    """Return the lower median of each column."""
    lower: NDArray[Any] = np.sort(counters, axis=0)[(len(counters) - 1) // 2]
    return lower
