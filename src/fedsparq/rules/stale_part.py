"""What a client owes, but has meanwhile found again by itself, is let go: sent as well, it would count twice."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import component
from fedsparq.protocols import ClientRule, Heard, RuleTraits


@component
class StalePart(ClientRule):
    """Lets go of the part of the residual that the client would not have found, had the model held the residual.

    A client goes a share of the way to its goal, ``update = A (goal - model)``: with the residual in the model, its
    update would be shorter by A times the residual. A shows in how updates answer to the model's changes: by layer,
    ``a = -<update - last update, change> / |change|^2``, from 0 to 1. As much of the residual is let go.
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
        """The last update's product with the change; the change then takes its place: one vector serves for both."""
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


def _products(one: Vector, other: Vector, state: Arrays) -> NDArray[np.float64]:
    """The inner products of two vectors, layer by layer."""
    spans = (slice(*pair) for pair in zip(state["bounds"][:-1], state["bounds"][1:], strict=True))
    return np.array([np.dot(one[span].astype(np.float64), other[span]) for span in spans])
