"""The plain step, and the step with momentum."""

from __future__ import annotations

import numpy as np

from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Decay, Positive, component
from fedsparq.protocols import PartTraits


@component
class Step:
    """model + lr mean."""

    lr: Positive = 1.0

    @property
    def traits(self) -> PartTraits:
        return PartTraits(provides=f"a plain step of {self.lr:g}")

    def init(self, layout: Layout) -> Arrays:
        return {}

    def step(self, model: Vector, mean: Vector, state: Arrays) -> tuple[Vector, Arrays]:
        return model + np.float32(self.lr) * mean, state


@component
class Momentum:
    """FedAvgM (Hsu 2019): v <- momentum v + mean; model + v.

    With `restart`, v is dropped in a round whose mean points against it.
    """

    momentum: Decay = 0.9
    restart: bool = False

    def init(self, layout: Layout) -> Arrays:
        return {"velocity": np.zeros(layout.size, np.float32)}

    def step(self, model: Vector, mean: Vector, state: Arrays) -> tuple[Vector, Arrays]:
        velocity = state["velocity"]
        against = self.restart and not float(mean @ velocity) > 0
        velocity = mean if against else np.float32(self.momentum) * velocity + mean
        return model + velocity, {"velocity": velocity}
