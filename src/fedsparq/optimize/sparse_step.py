"""SparseFed's server (Panda 2022): only the largest of what was gathered moves the model."""

from __future__ import annotations

import numpy as np

from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Decay, Fraction, component


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
