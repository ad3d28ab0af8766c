"""Adaptive server optimizers: FedAdam and FedYogi (Reddi 2021)."""

from __future__ import annotations

import numpy as np

from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Decay, Positive, component


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
