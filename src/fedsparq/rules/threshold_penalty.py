"""SpaFL (Kim 2024): thresholds that are rewarded for being high."""

from __future__ import annotations

from typing import Any, ClassVar

from fedsparq.layout import Arrays
from fedsparq.options import NonNegative, component
from fedsparq.protocols import ClientRule, RuleTraits


@component
class ThresholdPenalty(ClientRule):
    """Trains on loss + penalty sum exp(-threshold); for the task `spafl`, whose shared model is the thresholds."""

    penalty: NonNegative = 0.002
    traits: ClassVar[RuleTraits] = RuleTraits(task="spafl")

    def gradient(self, gradient: Any, weights: Any, start: Any, state: Arrays) -> None:
        gradient.sub_((-weights).exp(), alpha=self.penalty)
