"""How kept values are written. A quantizer takes what will be decoded away from `c`, which becomes the residual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress import kernels
from fedsparq.compress.payload import Floats, Halves, Positions, Steps, Values
from fedsparq.compress.select import Marks, Reaching
from fedsparq.compress.state import Vector
from fedsparq.errors import OptionError

MAX_LEVELS = 32767
_NO_WORDS = np.empty(0, np.uint64)
_LARGEST = float(np.finfo(np.float32).max)


class Room:
    """Memory for the places and numbers of all layers, used from the front: what is never written costs nothing."""

    def __init__(self, size: int, dtype: type[np.generic]) -> None:
        self._places = np.empty(size, np.uint32)
        self._numbers: NDArray[Any] = np.empty(size, dtype)
        self._used = 0

    @property
    def used(self) -> Positions:
        """All places so far."""
        return self._places[: self._used]

    @property
    def left(self) -> tuple[Positions, NDArray[Any]]:
        return self._places[self._used :], self._numbers[self._used :]

    def take(self, count: int) -> tuple[Positions, NDArray[Any]]:
        """The first `count` of what was left are in use now."""
        part = slice(self._used, self._used + count)
        self._used += count
        return self._places[part], self._numbers[part]


class Quantizer(Protocol):
    @property
    def dtype(self) -> type[np.generic]:
        """Of the numbers it makes of values."""

    def quantize(
        self, c: Vector, base: int, marks: Marks | Reaching, seed: int, room: Room | None = None
    ) -> tuple[Positions, Values]:
        """The values of one layer, and their places in the whole vector: fewer than marked where some became zero."""


@dataclass(frozen=True)
class Float32:
    """As they are."""

    dtype: ClassVar[type[np.generic]] = np.float32

    def quantize(
        self, c: Vector, base: int, marks: Marks | Reaching, seed: int, room: Room | None = None
    ) -> tuple[Positions, Values]:
        room = room or Room(c.size, self.dtype)
        positions, values = room.take(kernels.take_floats(c, *_words_or_limit(marks), base, *room.left))
        return positions, Floats(values)


@dataclass(frozen=True)
class Float16:
    """Half precision, saturating at 65504: what does not fit stays in the residual."""

    rounding: Literal["nearest", "stochastic"] = "nearest"
    dtype: ClassVar[type[np.generic]] = np.uint16

    def quantize(
        self, c: Vector, base: int, marks: Marks | Reaching, seed: int, room: Room | None = None
    ) -> tuple[Positions, Values]:
        room = room or Room(c.size, self.dtype)
        drawn = (self.rounding == "stochastic", np.uint64(seed))
        positions, halves = room.take(kernels.take_halves(c, *_words_or_limit(marks), base, *drawn, *room.left))
        return positions, Halves(halves)


@dataclass(frozen=True)
class QSGD:
    """Unbiased stochastic levels of the layer's norm; the norm is sent once, as the step norm / levels."""

    levels: int
    dtype: ClassVar[type[np.generic]] = np.int16

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= MAX_LEVELS:
            raise OptionError(f"levels={self.levels} is out of range; it must be from 1 to {MAX_LEVELS}")

    def quantize(
        self, c: Vector, base: int, marks: Marks | Reaching, seed: int, room: Room | None = None
    ) -> tuple[Positions, Values]:
        room = room or Room(c.size, self.dtype)
        marks = marks.marks if isinstance(marks, Reaching) else marks
        places = np.empty(marks.count, np.uint32)
        kernels.list_marked(marks.words, 0, places)
        chosen = c[places]
        step = round_up(float(np.linalg.norm(chosen.astype(np.float64))) / self.levels)
        signed = np.zeros(places.size, np.int16)
        if step > 0:
            most = min(self.levels, int(_LARGEST // float(step)))
            kernels.stochastic_levels(chosen, np.float64(step), most, base, np.uint64(seed), signed)
        nonzero = np.flatnonzero(signed)
        positions, levels = room.take(nonzero.size)
        np.take(signed, nonzero, out=levels)
        np.take(places, nonzero, out=positions)
        values = Steps(step, levels)
        c[positions] -= values.decoded()
        positions += np.uint32(base)
        return positions, values


def _words_or_limit(marks: Marks | Reaching) -> tuple[NDArray[np.uint64], np.float32]:
    """What the loops take: a bitmap, or an empty one and a limit."""
    return (_NO_WORDS, marks.limit) if isinstance(marks, Reaching) else (marks.words, np.float32(0))


def round_up(value: float) -> np.float32:
    """The least finite float32 that is not below value: as the step, it keeps every level within their number."""
    value = min(value, _LARGEST)
    rounded = np.float32(value)
    return rounded if float(rounded) >= value else np.nextafter(rounded, np.float32(np.inf))
