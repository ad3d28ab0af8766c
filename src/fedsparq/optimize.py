"""Server optimizers: how the server steps by the mean update."""

from __future__ import annotations

import numpy as np

from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Decay, Fraction, Positive, component
from fedsparq.protocols import PartTraits, Stateless


@component
class Step(Stateless):
    """model + lr mean."""

    lr: Positive = 1.0

    @property
    def traits(self) -> PartTraits:
        return PartTraits(provides=f"a plain step of {self.lr:g}")

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


@component
class Adam:
    """FedAdam (Reddi 2021), without bias correction.

    m <- b1 m + (1 - b1) mean; v <- b2 v + (1 - b2) mean^2; model + lr m / (sqrt(v) + tau).
    """

    lr: Positive = 0.1
    beta_1: Decay = 0.9
    beta_2: Decay = 0.99
    tau: Positive = 1e-3

    def init(self, layout: Layout) -> Arrays:
        return {"first": np.zeros(layout.size, np.float32), "second": np.zeros(layout.size, np.float32)}

    def step(self, model: Vector, mean: Vector, state: Arrays) -> tuple[Vector, Arrays]:
        first = np.float32(self.beta_1) * state["first"] + np.float32(1 - self.beta_1) * mean
        second = self._second(state["second"], np.square(mean))
        change = np.float32(self.lr) * first / (np.sqrt(second) + np.float32(self.tau))
        return model + change.astype(np.float32, copy=False), {"first": first, "second": second}

    def _second(self, second: Vector, square: Vector) -> Vector:
        return np.float32(self.beta_2) * second + np.float32(1 - self.beta_2) * square


@component
class Yogi(Adam):
    """FedYogi: Adam whose second moment moves by a fixed share: v <- v - (1 - b2) mean^2 sign(v - mean^2)."""

    def _second(self, second: Vector, square: Vector) -> Vector:
        moved: Vector = second - np.float32(1 - self.beta_2) * square * np.sign(second - square)
        return moved


@component
class Sign(Stateless):
    """model + lr sign(mean)."""

    lr: Positive = 0.003

    def step(self, model: Vector, mean: Vector, state: Arrays) -> tuple[Vector, Arrays]:
        direction: Vector = np.sign(mean)
        return model + np.float32(self.lr) * direction, state


@component
class SparseStep:
    """V <- momentum V + mean; E <- E + V; the model moves by the k largest of E, where E and V become 0.

    With an aggregator that clips, such as ``clipped-mean``, this is SparseFed.

    Args:
        fraction: of the coordinates that moves in a round.
        momentum: the server's.
    """

    fraction: Fraction = 0.1
    momentum: Decay = 0.0

    def init(self, layout: Layout) -> Arrays:
        return {"error": np.zeros(layout.size, np.float32), "velocity": np.zeros(layout.size, np.float32)}

    def step(self, model: Vector, mean: Vector, state: Arrays) -> tuple[Vector, Arrays]:
        velocity = np.float32(self.momentum) * state["velocity"] + mean
        error = state["error"] + velocity
        count = max(1, round(self.fraction * error.size))
        moved = np.argpartition(np.abs(error), error.size - count)[error.size - count :]
        model = model.copy()
        model[moved] += error[moved]
        error[moved], velocity[moved] = 0, 0
        return model, {"error": error, "velocity": velocity}
