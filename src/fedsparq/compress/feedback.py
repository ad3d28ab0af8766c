"""Error feedback: what is remembered of what was not sent, and what happens when a reply did not count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from fedsparq.compress.workspace import Fused, Workspace, check_update
from fedsparq.errors import OptionError
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Decay, NonNegative, Positive, component
from fedsparq.payload import Payload
from fedsparq.protocols import (
    Compressed,
    Compressor,
    CompressorTraits,
    Feedback,
    FeedbackTraits,
    RoundContext,
    State,
    traits_of,
)


@component
class Deferred:
    """What a fused compressor left in the workspace for later; the rest is unbiased, and not put back if it is lost."""

    traits: ClassVar[FeedbackTraits] = FeedbackTraits(is_layerwise=True)

    def init(self, layout: Layout) -> Arrays:
        return {"residual": np.zeros(layout.size, np.float32)}

    def compress(
        self, update: Vector, state: State, compressor: Compressor, rng: np.random.Generator, recycle: Vector | None
    ) -> tuple[Payload, State]:
        workspace = Workspace(state.layout, update, state.residual, recycle)
        if isinstance(compressor, Fused) and (compressor.subtracts or not self.traits.conserves_mass):
            payload, memory = compressor.compress_in_place(workspace, state.compressor, rng)
            left = workspace.vector
        else:
            payload, memory = _compress(compressor, workspace.vector, state, rng)
            left = workspace.vector.copy()  # the payload may hold parts of the vector
            payload.add_to(left, -1.0)
        return payload, replace(state, compressor=memory, feedback=self._remember(left, payload))

    def _remember(self, left: Vector, payload: Payload) -> Arrays:
        return {"residual": left}

    def acknowledge(self, state: Arrays, payload: Payload, share: float) -> Arrays:
        return state


@component
class Full(Deferred):
    """Error feedback (Seide 2014): all that was not sent, and all that was sent but did not count."""

    traits: ClassVar[FeedbackTraits] = FeedbackTraits(conserves_mass=True, is_layerwise=True)

    def acknowledge(self, state: Arrays, payload: Payload, share: float) -> Arrays:
        if share == 1:
            return state
        residual = state["residual"].copy()
        payload.add_to(residual, 1 - share)
        return {**state, "residual": residual}


@component
class Scaled(Full):
    """Error feedback with a residual that never outweighs the update: b = min(1, kappa |update| / |residual|) of it is
    added, and the rest waits. Our reading of "adaptive residual scaling"; the paper that it is cited for could not be
    had.
    """

    kappa: Positive = 1.0
    traits: ClassVar[FeedbackTraits] = FeedbackTraits(conserves_mass=True)

    def compress(
        self, update: Vector, state: State, compressor: Compressor, rng: np.random.Generator, recycle: Vector | None
    ) -> tuple[Payload, State]:
        residual = state.feedback["residual"]
        new, owed = _norm(check_update(update, state.layout)), _norm(residual)
        if not self.kappa * new < owed:
            return super().compress(update, state, compressor, rng, recycle)
        added = np.float32(self.kappa * new / owed) * residual
        part = replace(state, feedback={**state.feedback, "residual": added})
        payload, after = super().compress(update, part, compressor, rng, recycle)
        left = after.feedback["residual"]
        left += residual - added
        return payload, after


@component
class MomentumCorrected(Full):
    """Deep gradient compression (Lin 2018): error feedback for the update's velocity, which stands in its place.

    The velocity is cleared where something was sent (momentum factor masking). An update longer than `clip_norm` is
    first scaled down to it; 0 clips nothing.
    """

    momentum: Decay
    clip_norm: NonNegative = 0.0
    traits: ClassVar[FeedbackTraits] = FeedbackTraits(conserves_mass=True)

    def init(self, layout: Layout) -> Arrays:
        return {**super().init(layout), "velocity": np.zeros(layout.size)}

    def compress(
        self, update: Vector, state: State, compressor: Compressor, rng: np.random.Generator, recycle: Vector | None
    ) -> tuple[Payload, State]:
        update = check_update(update, state.layout)
        norm = _norm(update)
        scale = self.clip_norm / norm if 0 < self.clip_norm < norm else 1.0
        velocity = self.momentum * state.feedback["velocity"]
        velocity += scale * update
        payload, after = super().compress(velocity.astype(np.float32), state, compressor, rng, recycle)
        velocity[payload.indices] = 0.0
        return payload, replace(after, feedback={**after.feedback, "velocity": velocity})


@component
class KeptOnly(Deferred):
    """The rounding errors of what was sent; what was not sent is forgotten."""

    def _remember(self, left: Vector, payload: Payload) -> Arrays:
        residual = np.zeros_like(left)
        residual[payload.indices] = left[payload.indices]
        return {"residual": residual}


@component
class Off(Deferred):
    """Nothing."""

    def init(self, layout: Layout) -> Arrays:
        return {}

    def _remember(self, left: Vector, payload: Payload) -> Arrays:
        return {}


FEEDBACK: Mapping[str, Feedback] = {
    "full": Full(),
    "scaled": Scaled(),
    "kept-only": KeptOnly(),
    "deferred": Deferred(),
    "off": Off(),
}


def _norm(vector: Vector) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))


def _compress(compressor: Compressor, update: Vector, state: State, rng: np.random.Generator) -> Compressed:
    """What a compressor makes of an update that it cannot change; an error unless it is what it should be."""
    update = update.view()
    update.flags.writeable = False
    context = (RoundContext(state.plan),) if traits_of(compressor, CompressorTraits).wants_context else ()
    result = compressor.compress(update, state.layout, state.compressor, rng, *context)
    name = type(compressor).__name__
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise OptionError(f"compressor {name} must return a payload and its next state, a dict of arrays")
    payload, after = result
    if not isinstance(payload, Payload) or payload.layout.digest != state.layout.digest:
        got = "one of another layout" if isinstance(payload, Payload) else type(payload).__name__
        raise OptionError(f"compressor {name} must return a fedsparq.Payload for the layout it was given; got {got}")
    payload.check_indices()
    return payload, after
