"""What a client would send in any round, because its data are like that, is left out of what it sends in this one."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Fraction, component
from fedsparq.protocols import ClientRule, Heard, RuleTraits


@component
class CommonPart(ClientRule):
    """Takes the client's drift out of its updates: they then hold what clients have in common, and need fewer bits.

    The drift is how far the client's updates lie from the model's change a round, smoothed over the rounds it took
    part in: `weight` is that of the newest. Of each layer as much of it is left out as the update holds, at most all.
    """

    weight: Fraction = 0.5
    traits: ClassVar[RuleTraits] = RuleTraits(needs_model_change=True)

    def init(self, layout: Layout) -> Arrays:
        return {
            "drift": np.zeros(layout.size, np.float32),
            "left_out": np.zeros(len(layout.parameters), np.float32),
            "bounds": np.asarray(layout.bounds, np.int64),
        }

    def end(self, update: Vector, state: Arrays) -> tuple[Vector, Arrays]:
        drift, bounds = state["drift"], state["bounds"]
        rest, left_out = update.copy(), np.zeros_like(state["left_out"])
        for layer in range(left_out.size):
            span = slice(bounds[layer], bounds[layer + 1])
            square = float(np.dot(drift[span], drift[span]))
            if square:
                left_out[layer] = min(max(float(np.dot(update[span], drift[span])) / square, 0.0), 1.0)
                rest[span] -= left_out[layer] * drift[span]
        return rest, state | {"left_out": left_out}

    def heard(self, heard: Heard, state: Arrays) -> Arrays:
        if heard.change is None or not heard.share:
            return state
        away = heard.change / np.float32(-heard.rounds)
        heard.payload.add_to(away, 1.0)
        away += np.repeat(state["left_out"], np.diff(state["bounds"])) * state["drift"]
        weight = np.float32(self.weight)
        return state | {"drift": (1 - weight) * state["drift"] + weight * away}
