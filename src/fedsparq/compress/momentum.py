"""Deep gradient compression: what it does to an update before the largest of it are sent, and how many those are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsparq.compress.payload import Positions
from fedsparq.compress.select import Choice, Forgetful, Largest, Memory, check_fraction
from fedsparq.compress.state import Compensated, Vector
from fedsparq.errors import OptionError
from fedsparq.layout import Layout


@dataclass(frozen=True)
class MomentumCorrection:
    """The update's place is taken by its velocity, which forgets what was sent (momentum factor masking).

    An update longer than `clip_norm` is first scaled down to it; 0 clips nothing.
    """

    momentum: float
    clip_norm: float

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise OptionError(f"momentum={self.momentum} is out of range; it must be at least 0 and below 1")
        if not 0 <= self.clip_norm < np.inf:
            raise OptionError(f"clip_norm={self.clip_norm} is out of range; it must be a number of at least 0")

    def init(self, layout: Layout) -> Memory:
        return {"velocity": np.zeros(layout.size)}

    def before(self, update: Vector, memory: Memory) -> Vector:
        """What is compressed in the update's stead."""
        norm = float(np.linalg.norm(update.astype(np.float64)))
        scale = self.clip_norm / norm if 0 < self.clip_norm < norm else 1.0
        velocity = memory["velocity"]
        velocity *= self.momentum
        velocity += scale * update
        return velocity.astype(np.float32)

    def after(self, places: Positions, memory: Memory) -> None:
        memory["velocity"][places] = 0.0


@dataclass(frozen=True)
class WarmingUp(Forgetful):
    """The largest fraction of each layer, which falls from `start` to `fraction` by equal ratios in `rounds` rounds."""

    fraction: float
    start: float
    rounds: int

    def __post_init__(self) -> None:
        check_fraction(self.fraction)
        check_fraction(self.start)
        if self.rounds < 0:
            raise OptionError(f"warmup={self.rounds} is out of range; it must be a number of rounds, 0 for none")

    def select(self, c: Compensated, rounds: int, memory: Memory, rng: np.random.Generator) -> Choice:
        return Largest(self.at(rounds), scope="layer").select(c, rounds, memory, rng)

    def at(self, rounds: int) -> float:
        """The fraction sent in the round after `rounds` others."""
        if rounds >= self.rounds:
            return self.fraction
        return float(self.start * (self.fraction / self.start) ** (rounds / self.rounds))
