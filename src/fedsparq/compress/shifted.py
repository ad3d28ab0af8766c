"""Replies that say how an update differs from a shift that client and server both remember: EF21, EControl, SoteriaFL.

The client's shift moves only by what the server has counted, so that the server's mean of the shifts stays the mean of
the clients' own. A client whose state is lost begins at 0 while the server still holds its shift.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedsparq.compress.feedback import Off
from fedsparq.compress.workspace import check_update
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Fraction, NonNegative, component
from fedsparq.payload import Payload
from fedsparq.protocols import Compressor, FeedbackTraits, State


@component
class Shifted:
    """Sends C(v - shift); the shift moves by `gain` times what counted.

    v is the update, or with `new` below 1 the mean of all updates in which a new one weighs so much: EF21-SGDM
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

    def compress(
        self, update: Vector, state: State, compressor: Compressor, rng: np.random.Generator, recycle: Vector | None
    ) -> tuple[Payload, State]:
        vector, memory = check_update(update, state.layout), state.feedback
        if self.new < 1:
            new = np.float32(self.new if memory["rounds"][0] else 1)
            vector = (1 - new) * memory["average"] + new * vector
            memory = memory | {"average": vector, "rounds": memory["rounds"] + 1}
        payload, after = Off().compress(vector - memory["shift"], state, compressor, rng, None)
        return payload, replace(after, feedback=memory)

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

    def compress(
        self, update: Vector, state: State, compressor: Compressor, rng: np.random.Generator, recycle: Vector | None
    ) -> tuple[Payload, State]:
        shift, error = state.feedback["shift"], state.feedback["error"]
        difference = check_update(update, state.layout) - shift
        payload, after = Off().compress(np.float32(self.eta) * error + difference, state, compressor, rng, None)
        left = error + difference
        payload.add_to(left, -1.0)
        return payload, replace(after, feedback={"shift": shift, "error": left})

    def acknowledge(self, state: Arrays, payload: Payload, share: float) -> Arrays:
        """What counted moves the shift; what did not is left out after all."""
        return {
            "shift": _plus(state["shift"], payload, share),
            "error": _plus(state["error"], payload, 1 - share),
        }


def _shifted(gain: float) -> FeedbackTraits:
    return FeedbackTraits(
        needs_acks=True, provides="replies relative to a shift", requires=f"a server that moves shifts by {gain:g}"
    )


def _plus(vector: Vector, payload: Payload, weight: float) -> Vector:
    if not weight:
        return vector
    moved = vector.copy()
    payload.add_to(moved, weight)
    return moved
