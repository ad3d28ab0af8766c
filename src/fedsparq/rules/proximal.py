"""FedProx (Li 2020): a pull towards the global model while training."""

from __future__ import annotations

from typing import Any

from fedsparq.layout import Arrays
from fedsparq.options import NonNegative, component
from fedsparq.protocols import ClientRule, RuleTraits


@component
class Proximal(ClientRule):
    """Trains on loss + mu/2 |w - w_start|^2."""

    mu: NonNegative = 0.01

    @property
    def traits(self) -> RuleTraits:
        return RuleTraits(config={"proximal-mu": self.mu})

    def gradient(self, gradient: Any, weights: Any, start: Any, state: Arrays) -> None:
        gradient.add_(weights - start, alpha=self.mu)
