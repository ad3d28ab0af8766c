"""The coordinates of the flat vector that a payload carries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedsparq.payload import kernels

Indices = NDArray[np.uint32]
"""Coordinates of the flat vector, strictly increasing."""


@dataclass(frozen=True)
class Dense:
    """Every coordinate; no index is sent."""

    size: int

    @property
    def count(self) -> int:
        return self.size

    @property
    def indices(self) -> Indices:
        return np.arange(self.size, dtype=np.uint32)


@dataclass(frozen=True)
class Sparse:
    """Coordinates that are listed."""

    indices: Indices

    @property
    def count(self) -> int:
        return self.indices.size


@dataclass(frozen=True)
class Seeded:
    """`count` of `size` coordinates that both sides draw from one seed: only the seed is sent."""

    size: int
    count: int
    seed: int

    @cached_property
    def indices(self) -> Indices:
        indices = np.empty(self.count, np.uint32)
        kernels.random_indices(np.uint64(self.seed), self.size, self.count, indices)
        return indices


Selection = Dense | Sparse | Seeded
