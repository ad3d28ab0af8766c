"""FedCOMGATE (Haddadpour 2021): gradients corrected by how a client's updates differ from the mean update."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsparq.layout import Arrays, Layout
from fedsparq.options import Positive, component
from fedsparq.protocols import ClientRule, Heard, RuleTraits


@component
class DriftCorrection(ClientRule):
    """Trains by gradient - drift. The drift moves by (mean update - own) / reach once a reply has counted.

    The mean update is the model's change divided by `gamma`, the server's plain step. Weighted as the server weighs
    replies, and by their reach, the drifts of all clients add up to 0. Own updates are taken as the server decoded
    them: with what the client meant to send instead, as in the authors' code, the sum would wander off.
    """

    gamma: Positive = 1.0

    @property
    def traits(self) -> RuleTraits:
        return RuleTraits(
            needs_model_change=True, requires_full_participation=True, requires=f"a plain step of {self.gamma:g}"
        )

    def init(self, layout: Layout) -> Arrays:
        return {"drift": np.zeros(layout.size, np.float32)}

    def gradient(self, gradient: Any, weights: Any, start: Any, state: Arrays) -> None:
        gradient.sub_(gradient.new_tensor(state["drift"]))

    def heard(self, heard: Heard, state: Arrays) -> Arrays:
        if heard.change is None or heard.rounds != 1 or not heard.share or not heard.reach:
            return state
        difference = heard.change / np.float32(self.gamma)
        heard.payload.add_to(difference, -heard.share)
        return {"drift": state["drift"] + difference / np.float32(heard.reach)}
