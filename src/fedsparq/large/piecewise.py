"""A method on a model in pieces: in one pass where it looks at each layer by itself, in two where it weighs all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from fedsparq.compress.workspace import Workspace
from fedsparq.errors import OptionError
from fedsparq.large.pieces import Piece
from fedsparq.layout import Arrays, Vector, part_of
from fedsparq.method import Method
from fedsparq.payload import Payload
from fedsparq.protocols import Compressor, Feedback, State, hooks_of

_WHOLE = "whole"


@runtime_checkable
class Surveying(Protocol):
    """A compressor that can weigh all pieces of a model against each other: a first pass surveys each."""

    def init_whole(self, size: int) -> Arrays:
        """The state before the first round, of a model with so many coordinates."""

    def survey(self, workspace: Workspace) -> Arrays:
        """What must be known of a piece."""

    def settle(self, surveys: Sequence[Arrays], state: Arrays) -> tuple[list[Compressor], Arrays]:
        """A compressor for each piece, which needs to know no other, and the next state."""


@dataclass(frozen=True)
class Done:
    """What a piece came to."""

    payload: Payload
    residual: Vector | None
    state: Arrays


class Piecewise:
    """One round of a method on pieces; `states` is what it remembers beside the residual."""

    def __init__(self, method: Method, pieces: Sequence[Piece], states: Arrays, origin: str, round: int) -> None:
        self.method, self.pieces = method, pieces
        self._feedback = cast(Feedback, method.feedback)
        self._seed = [int(origin, 16), round]
        _check(method, pieces)
        whole = part_of(_WHOLE, states)
        self._before = [part_of(str(piece.number), states) for piece in pieces]
        if self.surveys and not whole:
            whole = self._compressor.init_whole(sum(piece.size for piece in pieces))
        elif not self.surveys and not states:
            self._before = [method.compressor.init(piece.layout) for piece in pieces]
        begun = zip(pieces, self._before, strict=True)
        self._before = [method.begin(State(piece.layout, own), round).compressor for piece, own in begun]
        self._whole, self._compressors = whole, [method.compressor] * len(pieces)

    @property
    def surveys(self) -> bool:
        """Whether a first pass must come before `compress`."""
        several = len(self.pieces) > 1 and not self.method.traits.is_layerwise
        return several and isinstance(self.method.compressor, Surveying)

    @property
    def keeps_residual(self) -> bool:
        return bool(self._feedback.init(_TINY.layout))

    @property
    def _compressor(self) -> Any:
        return self.method.compressor

    def survey(self, piece: Piece, update: Vector, residual: Vector | None) -> Arrays:
        return cast(Arrays, self._compressor.survey(Workspace(piece.layout, update, residual)))

    def settle(self, surveys: Sequence[Arrays]) -> None:
        """End the first pass."""
        self._compressors, self._whole = self._compressor.settle(surveys, self._whole)

    def compress(self, piece: Piece, update: Vector, residual: Vector | None, recycle: Vector | None) -> Done:
        before = {} if self.surveys else self._before[piece.number]
        if residual is None and self.keeps_residual:
            residual = self._feedback.init(piece.layout)["residual"]
        state = State(piece.layout, before, {} if residual is None else {"residual": residual})
        rng = np.random.default_rng([*self._seed, piece.number])
        compressor = self._compressors[piece.number]
        payload, after = self._feedback.compress(update, state, compressor, rng, recycle)
        return Done(payload, after.residual, {} if self.surveys else after.compressor)

    def states(self, done: Sequence[Arrays]) -> Arrays:
        """What to remember, once every piece is done."""
        own = {f"{number}.{name}": array for number, state in enumerate(done) for name, array in state.items()}
        return own | {f"{_WHOLE}.{name}": array for name, array in self._whole.items()}

    def now(self) -> Arrays:
        """What there is to remember before anything is done: as many bytes as `states` will have."""
        return self.states(self._before)


def put_back(method: Method, piece: Piece, residual: Vector, payload: Payload) -> Vector:
    """The residual once the server is known not to have counted a payload."""
    state = State(piece.layout, {}, {"residual": residual})
    feedback = cast(Feedback, method.feedback).acknowledge(state.feedback, payload, 0.0)
    return cast(Vector, replace(state, feedback=feedback).residual)


_TINY = Piece(0, ())


def _check(method: Method, pieces: Sequence[Piece]) -> None:
    """Refuse what cannot be done as the method means it."""
    label, feedback = method.label, cast(Feedback, method.feedback)
    if method.identity is None:
        raise OptionError("a method made by hand has no name that a message could carry; give its name instead")
    traits, active = method.traits, any(hooks_of(rule) - {"gradient"} for rule in method.rules)
    if active or traits.needs_acks or traits.requires_own_server or traits.plans_rounds:
        raise OptionError(
            f"{label!r} needs its own client and server in every round, not only a compressor; files can be compressed "
            "with fedsparq, fedsparq-adaptive, percentile, stc -o scope=layer, float16 and others that stand alone"
        )
    if set(feedback.init(_TINY.layout)) - {"residual"}:
        raise OptionError(f"{label!r} keeps more than one vector for each client; take one that keeps a residual only")
    if len(pieces) > 1 and not method.traits.is_layerwise and not isinstance(method.compressor, Surveying):
        raise OptionError(
            f"{label!r} compares the coordinates of the whole model, which this one is too large for; take a method "
            "that looks at each layer by itself (fedsparq, percentile, stc -o scope=layer), or fedsparq-adaptive"
        )
