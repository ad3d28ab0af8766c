"""Client rules: how clients train beyond plain SGD, and what of it they send."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Fraction, NonNegative, Positive, component
from fedsparq.protocols import ClientRule, Heard, RuleTraits


@component
class Proximal(ClientRule):
    """Train on loss + mu/2 |w - w_start|^2 (FedProx)."""

    mu: NonNegative = 0.01

    @property
    def traits(self) -> RuleTraits:
        return RuleTraits(config={"proximal-mu": self.mu})

    def gradient(self, gradient: Any, weights: Any, start: Any, state: Arrays) -> None:
        gradient.add_(weights - start, alpha=self.mu)


@component
class DriftCorrection(ClientRule):
    """Train by gradient - drift. The drift moves by (mean update - own) / reach after a reply has counted.

    The mean update is the model's change divided by `gamma`, the server's plain step. Weighted as the server weighs
    replies, and by their reach, the drifts of all clients sum to 0. Own updates are those that the server decoded: with
    the updates before compression, as in the authors' code, the sum would not stay 0.
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


@component
class CommonPart(ClientRule):
    """Subtract the client's drift from its updates: what is left is common to clients, and needs fewer bits.

    The drift is the difference between the client's updates and the model's change per round, smoothed over the rounds
    it took part in: `weight` is that of the newest. In each layer it is subtracted as far as the update contains it.
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


@component
class StalePart(ClientRule):
    """Discard the share of the residual that later updates already contain.

    A client moves a share of the way to its optimum, ``update = A (optimum - model)``: with the residual in the model,
    its update would be shorter by A times the residual. A is estimated by how updates respond to the model's changes:
    by layer, ``a = -<update - last update, change> / |change|^2``, from 0 to 1. That share is discarded.
    """

    traits: ClassVar[RuleTraits] = RuleTraits(needs_model_change=True)

    def init(self, layout: Layout) -> Arrays:
        layers = len(layout.parameters)
        return {
            "vector": np.zeros(layout.size, np.float32),
            "product": np.zeros(layers),
            "square": np.zeros(layers),
            "share": np.zeros(layers, np.float32),
            "bounds": np.asarray(layout.bounds, np.int64),
        }

    def heard(self, heard: Heard, state: Arrays) -> Arrays:
        """Note the last update's product with the change, which then takes its place: one vector serves for both."""
        if heard.change is None or state["square"].any():
            return state
        product = _products(state["vector"], heard.change, state)
        square = _products(heard.change, heard.change, state)
        return state | {"vector": heard.change, "product": product, "square": square}

    def end(self, update: Vector, state: Arrays) -> tuple[Vector, Arrays]:
        square = state["square"]
        answer = state["product"] - _products(update, state["vector"], state)
        share = np.divide(answer, square, out=np.zeros_like(square), where=square > 0).clip(0, 1)
        nothing = np.zeros_like(square)
        after = {"vector": update.copy(), "product": nothing, "square": nothing, "share": share.astype(np.float32)}
        return update, state | after

    def owed(self, residual: Vector, state: Arrays) -> Vector:
        still: Vector = residual * np.repeat(1 - state["share"], np.diff(state["bounds"]))
        return still


@component
class StepAhead(ClientRule):
    """Start from model + alpha residual; the update is the change from there. Read from the paper's abstract."""

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5

    def start(self, model: Vector, residual: Vector | None, state: Arrays) -> Vector:
        return model if residual is None or not self.alpha else model + np.float32(self.alpha) * residual


@component
class ThresholdPenalty(ClientRule):
    """Train on loss + penalty sum exp(-threshold); for the task `spafl`, whose shared model is the thresholds."""

    penalty: NonNegative = 0.002
    traits: ClassVar[RuleTraits] = RuleTraits(task="spafl")

    def gradient(self, gradient: Any, weights: Any, start: Any, state: Arrays) -> None:
        gradient.sub_((-weights).exp(), alpha=self.penalty)


def _products(one: Vector, other: Vector, state: Arrays) -> NDArray[np.float64]:
    """Return the inner products of two vectors, layer by layer."""
    spans = (slice(*pair) for pair in zip(state["bounds"][:-1], state["bounds"][1:], strict=True))
    return np.array([np.dot(one[span].astype(np.float64), other[span]) for span in spans])
