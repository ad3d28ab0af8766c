"""What aggregators share: the mean of buffers, and checks of what they give."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import OptionError
from fedsparq.layout import Buffers, Vector


@dataclass
class BufferMean:
    """Of what travels beside the parameters: of statistics the weighted mean, of counters the largest."""

    weight: float = 0.0
    statistics: NDArray[np.float64] | None = None
    counters: NDArray[np.int64] | None = None

    def add(self, buffers: Buffers | None, weight: float) -> None:
        if buffers is None:
            return
        self.weight += weight
        scaled = weight * buffers.statistics.astype(np.float64)
        self.statistics = scaled if self.statistics is None else self.statistics + scaled
        self.counters = buffers.counters if self.counters is None else np.maximum(self.counters, buffers.counters)

    def mean(self) -> Buffers | None:
        if self.statistics is None or self.counters is None:
            return None
        return Buffers((self.statistics / self.weight).astype(np.float32), self.counters)


def check_mean(name: str, mean: Any, size: int) -> Vector:
    """The mean as float32, or an error that names the aggregator."""
    with np.errstate(all="ignore"):
        vector: Vector = np.asarray(mean, np.float32)
        sound = vector.shape == (size,) and np.isfinite(vector @ vector)
    if not sound:
        raise OptionError(f"aggregator {name!r} must give a finite mean of {size} values")
    return vector


def check_shares(name: str, shares: Mapping[int, float], clients: Collection[int]) -> dict[int, float]:
    """The shares as plain numbers, or an error that names the aggregator."""
    if set(shares) != set(clients) or not all(0 <= share <= 1 for share in shares.values()):
        raise OptionError(f"aggregator {name!r} must give each client of the round a share from 0 to 1: {shares}")
    return {client: float(share) for client, share in shares.items()}
