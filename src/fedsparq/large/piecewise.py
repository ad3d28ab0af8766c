"""A method on a model in pieces: in one pass where it looks at each layer by itself, in two where it weighs all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from fedsparq.compress.feedback import sum_of
from fedsparq.errors import OptionError
from fedsparq.large.pieces import Piece
from fedsparq.layout import Arrays, Layout, Vector, part_of
from fedsparq.method import Method
from fedsparq.payload import Payload
from fedsparq.protocols import Compressor, Feedback, State, hooks_of

_WHOLE = "whole"


@runtime_checkable
class TwoPassCompressor(Protocol):
    """A compressor that weighs all pieces of a model against each other, after a first pass that measures each."""

    def init_whole(self, size: int) -> Arrays:
        """Return the state before the first round, of a model with `size` coordinates."""

    def measure(self, c: Vector, layout: Layout) -> Arrays:
        """Return what must be known of a piece."""

    def allocate(self, measures: Sequence[Arrays], state: Arrays) -> tuple[list[Compressor], Arrays]:
        """Return a compressor for each piece, independent of the others, and the next state."""


@dataclass(frozen=True)
class PieceResult:
    """The result of compressing a piece."""

    payload: Payload
    residual: Vector | None
    state: Arrays


class Piecewise:
    """One round of a method on pieces; `states` are its arrays besides the residual."""

    def __init__(self, method: Method, pieces: Sequence[Piece], states: Arrays, origin: str, round: int) -> None:
        self.method, self.pieces = method, pieces
        self._feedback = cast(Feedback, method.feedback)
        self._seed = [int(origin, 16), round]
        _check(method, pieces)
        whole = part_of(_WHOLE, states)
        self._before = [part_of(str(piece.number), states) for piece in pieces]
        if self.needs_first_pass and not whole:
            whole = self._compressor.init_whole(sum(piece.size for piece in pieces))
        elif not self.needs_first_pass and not states:
            self._before = [method.compressor.init(piece.layout) for piece in pieces]
        begun = zip(pieces, self._before, strict=True)
        self._before = [method.begin(State(piece.layout, own), round).compressor for piece, own in begun]
        self._whole, self._compressors = whole, [method.compressor] * len(pieces)

    @property
    def needs_first_pass(self) -> bool:
        """Whether a first pass must come before `compress`."""
        several = len(self.pieces) > 1 and not self.method.traits.is_layerwise
        return several and isinstance(self.method.compressor, TwoPassCompressor)

    @property
    def keeps_residual(self) -> bool:
        return bool(self._feedback.init(_TINY.layout))

    @property
    def _compressor(self) -> Any:
        return self.method.compressor

    def measure(self, piece: Piece, update: Vector, residual: Vector | None) -> Arrays:
        return cast(Arrays, self._compressor.measure(sum_of(update, residual, piece.layout)[0], piece.layout))

    def allocate(self, measures: Sequence[Arrays]) -> None:
        """End the first pass."""
        self._compressors, self._whole = self._compressor.allocate(measures, self._whole)

    def compress(self, piece: Piece, update: Vector, residual: Vector | None) -> PieceResult:
        before = {} if self.needs_first_pass else self._before[piece.number]
        if residual is None and self.keeps_residual:
            residual = self._feedback.init(piece.layout)["residual"]
        state = State(piece.layout, before, {} if residual is None else {"residual": residual})
        rng = np.random.default_rng([*self._seed, piece.number])
        compressor = self._compressors[piece.number]
        payload, after = self._feedback.compress(update, state, compressor, rng)
        return PieceResult(payload, after.residual, {} if self.needs_first_pass else after.compressor)

    def states(self, done: Sequence[Arrays]) -> Arrays:
        """Return the arrays to save, given the state of every piece."""
        own = {f"{number}.{name}": array for number, state in enumerate(done) for name, array in state.items()}
        return own | {f"{_WHOLE}.{name}": array for name, array in self._whole.items()}

    def initial_states(self) -> Arrays:
        """Return the arrays before the round: as many bytes as `states` will have."""
        return self.states(self._before)


def return_payload(method: Method, piece: Piece, residual: Vector, payload: Payload) -> Vector:
    """Return the residual after a payload that the server did not count."""
    state = State(piece.layout, {}, {"residual": residual})
    feedback = cast(Feedback, method.feedback).acknowledge(state.feedback, payload, 0.0)
    return cast(Vector, replace(state, feedback=feedback).residual)


_TINY = Piece(0, ())


def _check(method: Method, pieces: Sequence[Piece]) -> None:
    """Raise OptionError for a method that cannot compress these pieces as it should."""
    label, feedback = method.label, cast(Feedback, method.feedback)
    if method.identity is None:
        raise OptionError("a method made by hand has no name that a message could carry; give its name instead")
    traits, active = method.traits, any(hooks_of(rule) - {"gradient"} for rule in method.rules)
    if active or traits.needs_acks or traits.requires_own_server or traits.plans_rounds:
        raise OptionError(
            f"{label!r} cannot compress files: it needs its own client and server in every round; "
            "use for example fedsparq, fedsparq-adaptive, percentile or float16"
        )
    if set(feedback.init(_TINY.layout)) - {"residual"}:
        raise OptionError(f"{label!r} keeps more than one vector for each client; take one that keeps a residual only")
    if len(pieces) > 1 and not method.traits.is_layerwise and not isinstance(method.compressor, TwoPassCompressor):
        raise OptionError(
            f"{label!r} compares the coordinates of the whole model, which this one is too large for; take a method "
            "that looks at each layer by itself (fedsparq, percentile, stc -o scope=layer), or fedsparq-adaptive"
        )
