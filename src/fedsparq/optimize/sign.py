"""A step of one length on every coordinate (signSGD, Bernstein 2018)."""

from __future__ import annotations

import numpy as np

from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Positive, component


@component
class Sign:
    """model + lr sign(mean)."""

    lr: Positive = 0.003

    def init(self, layout: Layout) -> Arrays:
        return {}

    def step(self, model: Vector, mean: Vector, state: Arrays) -> tuple[Vector, Arrays]:
        direction: Vector = np.sign(mean)
        return model + np.float32(self.lr) * direction, state
