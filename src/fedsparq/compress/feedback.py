"""Error feedback: the residual of what was not sent, and of replies that did not count.

A shift is a vector that client and server share: replies are relative to it (EF21, EControl, SoteriaFL). The client's
shift moves only by what the server counted, so that the server's mean of the shifts stays the mean of the clients'. A
client whose state is lost starts at 0 while the server still holds its shift.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedsparq.compress import kernels
from fedsparq.errors import OptionError, UpdateError
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Decay, Fraction, NonNegative, Positive, component
from fedsparq.payload import Payload
from fedsparq.protocols import (
    AnyCompressor,
    Compressed,
    CompressorTraits,
    Feedback,
    FeedbackTraits,
    RoundContext,
    State,
    Stateless,
    traits_of,
)

Step = tuple[Payload, State]


@component
class DeferredFeedback:
    """Keep what the compressor defers to later rounds; the rest is unbiased, and not returned if it is lost."""

    traits: ClassVar[FeedbackTraits] = FeedbackTraits(is_layerwise=True)

    def init(self, layout: Layout) -> Arrays:
        return {"residual": np.zeros(layout.size, np.float32)}

    def compress(self, update: Vector, state: State, compressor: AnyCompressor, rng: Generator) -> Step:
        sent = compress_sum(compressor, update, state.residual, state, rng)
        residual = sent.left() if sent.residual is None else sent.residual
        return sent.payload, replace(state, compressor=sent.state, feedback={"residual": residual})

    def acknowledge(self, state: Arrays, payload: Payload, share: float) -> Arrays:
        return state


@component
class RoundingErrorFeedback(DeferredFeedback):
    """Keep the rounding errors of what was sent; what was not sent is discarded."""

    def compress(self, update: Vector, state: State, compressor: AnyCompressor, rng: Generator) -> Step:
        payload, after = super().compress(update, state, compressor, rng)
        residual = np.zeros(state.layout.size, np.float32)
        residual[payload.indices] = after.feedback["residual"][payload.indices]
        return payload, replace(after, feedback={"residual": residual})


@component
class NoFeedback(Stateless):
    """Keep nothing."""

    traits: ClassVar[FeedbackTraits] = FeedbackTraits(is_layerwise=True)

    def compress(self, update: Vector, state: State, compressor: AnyCompressor, rng: Generator) -> Step:
        sent = compress_sum(compressor, update, None, state, rng)
        return sent.payload, replace(state, compressor=sent.state)

    def acknowledge(self, state: Arrays, payload: Payload, share: float) -> Arrays:
        return state


@component
class ErrorFeedback:
    """Error feedback (Seide 2014): keep what was not sent, and what was sent but did not count."""

    traits: ClassVar[FeedbackTraits] = FeedbackTraits(conserves_mass=True, is_layerwise=True)

    def init(self, layout: Layout) -> Arrays:
        return {"residual": np.zeros(layout.size, np.float32)}

    def compress(self, update: Vector, state: State, compressor: AnyCompressor, rng: Generator) -> Step:
        sent = compress_sum(compressor, update, state.residual, state, rng)
        return sent.payload, replace(state, compressor=sent.state, feedback={"residual": sent.left()})

    def acknowledge(self, state: Arrays, payload: Payload, share: float) -> Arrays:
        return {**state, "residual": _plus(state["residual"], payload, 1 - share)}


@component
class ScaledErrorFeedback(ErrorFeedback):
    """Error feedback with a residual that never outweighs the update: b = min(1, kappa |update| / |residual|) of it is
    added, and the rest stays. Our reading of "adaptive residual scaling"; the paper that it is cited for was not
    available.
    """

    kappa: Positive = 1.0
    traits: ClassVar[FeedbackTraits] = FeedbackTraits(conserves_mass=True)

    def compress(self, update: Vector, state: State, compressor: AnyCompressor, rng: Generator) -> Step:
        residual = state.feedback["residual"]
        new, old = _norm(check_update(update, state.layout)), _norm(residual)
        if not self.kappa * new < old:
            return super().compress(update, state, compressor, rng)
        added = np.float32(self.kappa * new / old) * residual
        payload, after = super().compress(update, replace(state, feedback={"residual": added}), compressor, rng)
        return payload, replace(after, feedback={"residual": after.feedback["residual"] + (residual - added)})


@component
class MomentumCorrected(ErrorFeedback):
    """Deep gradient compression (Lin 2018): error feedback for the update's velocity, which replaces it.

    The velocity is cleared where something was sent (momentum factor masking). An update longer than `clip_norm` is
    first scaled down to it; 0 clips nothing.
    """

    momentum: Decay
    clip_norm: NonNegative = 0.0
    traits: ClassVar[FeedbackTraits] = FeedbackTraits(conserves_mass=True)

    def init(self, layout: Layout) -> Arrays:
        return {**super().init(layout), "velocity": np.zeros(layout.size)}

    def compress(self, update: Vector, state: State, compressor: AnyCompressor, rng: Generator) -> Step:
        norm = _norm(check_update(update, state.layout))
        scale = self.clip_norm / norm if 0 < self.clip_norm < norm else 1.0
        velocity = self.momentum * state.feedback["velocity"]
        velocity += scale * update
        payload, after = super().compress(velocity.astype(np.float32), state, compressor, rng)
        velocity[payload.indices] = 0.0
        return payload, replace(after, feedback={**after.feedback, "velocity": velocity})


@component
class Shifted:
    """Sends C(v - shift); the shift moves by `gain` times what counted.

    v is the update, or with `new` below 1 the mean of all updates in which a new one weighs this much: EF21-SGDM
    (Fatkhullin 2023). SoteriaFL (Li 2022) has an unbiased C and a small gain.
    """

    gain: NonNegative = 1.0
    new: Fraction = 1.0

    @property
    def traits(self) -> FeedbackTraits:
        return _shifted(self.gain)

    def init(self, layout: Layout) -> Arrays:
        shift: Arrays = {"shift": np.zeros(layout.size, np.float32)}
        average: Arrays = {"average": np.zeros(layout.size, np.float32), "rounds": np.zeros(1)}
        return shift | average if self.new < 1 else shift

    def compress(self, update: Vector, state: State, compressor: AnyCompressor, rng: Generator) -> Step:
        vector, memory = check_update(update, state.layout), state.feedback
        if self.new < 1:
            new = np.float32(self.new if memory["rounds"][0] else 1)
            vector = (1 - new) * memory["average"] + new * vector
            memory = memory | {"average": vector, "rounds": memory["rounds"] + 1}
        sent = compress_sum(compressor, vector - memory["shift"], None, state, rng)
        return sent.payload, replace(state, compressor=sent.state, feedback=memory)

    def acknowledge(self, state: Arrays, payload: Payload, share: float) -> Arrays:
        return state | {"shift": _plus(state["shift"], payload, self.gain * share)}


@component
class ErrorControlled:
    """EControl (Gao 2024): sends m = C(eta e + update - shift), where e has what earlier messages left out."""

    eta: NonNegative = 0.1

    @property
    def traits(self) -> FeedbackTraits:
        return _shifted(1.0)

    def init(self, layout: Layout) -> Arrays:
        return {name: np.zeros(layout.size, np.float32) for name in ("shift", "error")}

    def compress(self, update: Vector, state: State, compressor: AnyCompressor, rng: Generator) -> Step:
        shift, error = state.feedback["shift"], state.feedback["error"]
        difference = check_update(update, state.layout) - shift
        sent = compress_sum(compressor, np.float32(self.eta) * error + difference, None, state, rng)
        left = error + difference
        sent.payload.add_to(left, -1.0)
        return sent.payload, replace(state, compressor=sent.state, feedback={"shift": shift, "error": left})

    def acknowledge(self, state: Arrays, payload: Payload, share: float) -> Arrays:
        """Move the shift by what counted; what did not is added to the error."""
        return {
            "shift": _plus(state["shift"], payload, share),
            "error": _plus(state["error"], payload, 1 - share),
        }


FEEDBACK: Mapping[str, Feedback] = {
    "full": ErrorFeedback(),
    "scaled": ScaledErrorFeedback(),
    "kept-only": RoundingErrorFeedback(),
    "deferred": DeferredFeedback(),
    "off": NoFeedback(),
}


@dataclass
class Sent:
    """What a compressor made of an update plus residual, `sum`."""

    payload: Payload
    state: Arrays
    residual: Vector | None
    sum: Vector
    copies_values: bool

    def left(self) -> Vector:
        """Return the sum minus the payload, in the sum's own memory where the payload shares none of it."""
        left = self.sum if self.copies_values else self.sum.copy()
        self.payload.add_to(left, -1.0)
        return left


def compress_sum(
    compressor: AnyCompressor, update: Vector, residual: Vector | None, state: State, rng: Generator
) -> Sent:
    """Compress update + residual; raise OptionError if the compressor does not return what it should."""
    update = check_update(update, state.layout)
    c, sums = sum_of(update, residual, state.layout)
    traits, name, layout = traits_of(compressor, CompressorTraits), type(compressor).__name__, state.layout
    read_only = c.view()
    read_only.flags.writeable = False
    context = (RoundContext(update, sums, state.plan),) if traits.wants_context else ()
    result: Any = compressor.compress(read_only, layout, state.compressor, rng, *context)
    if not (isinstance(result, tuple) and len(result) in (2, 3) and isinstance(result[1], dict)):
        raise OptionError(f"compressor {name} must return a payload and its next state, a dict of arrays")
    sent = Compressed(*result)
    if not isinstance(sent.payload, Payload) or sent.payload.layout.digest != layout.digest:
        got = "one of another layout" if isinstance(sent.payload, Payload) else type(sent.payload).__name__
        raise OptionError(f"compressor {name} must return a fedsparq.Payload for the layout it was given; got {got}")
    sent.payload.check_indices()
    if sent.residual is not None:
        check_update(sent.residual, layout)
    return Sent(*sent, c, traits.copies_values)


def sum_of(update: Vector, residual: Vector | None, layout: Layout) -> tuple[Vector, NDArray[np.float64]]:
    """Return update + residual, and each layer's sum of magnitudes; raise UpdateError unless all is finite."""
    c, sums = np.empty(layout.size, np.float32), np.empty(len(layout.parameters))
    kernels.add(check_update(update, layout), residual, c, layout.bounds, sums)
    if not np.isfinite(sums).all():
        tensor = layout.parameters[int(np.flatnonzero(~np.isfinite(sums))[0])]
        layer = c[tensor.span]
        bad = int(np.flatnonzero(~np.isfinite(layer))[0])
        raise UpdateError(
            f"layer {tensor.name!r} of the update holds {layer[bad]} at index {bad} of {tensor.size}; "
            "every value must be finite (did training diverge? try a lower learning rate)"
        )
    return c, sums


def check_update(update: object, layout: Layout) -> Vector:
    """Return the update as a contiguous vector; raise UpdateError unless it is float32 of the layout's size."""
    if not isinstance(update, np.ndarray) or update.dtype != np.float32 or update.shape != (layout.size,):
        kind = f"{update.dtype}{list(update.shape)}" if isinstance(update, np.ndarray) else type(update).__name__
        raise UpdateError(f"the update is {kind}; this layout takes float32[{layout.size}]")
    return np.ascontiguousarray(update)


def _shifted(gain: float) -> FeedbackTraits:
    return FeedbackTraits(
        needs_acks=True, provides="replies relative to a shift", requires=f"a server that moves shifts by {gain:g}"
    )


def _plus(vector: Vector, payload: Payload, weight: float) -> Vector:
    """Return vector + weight * payload."""
    if not weight:
        return vector
    moved = vector.copy()
    payload.add_to(moved, weight)
    return moved


def _norm(vector: Vector) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))
