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
    """Memory that the loops write to, layer after layer: new memory is slow, and their need shows only afterwards."""

    def __init__(self, size: int, dtype: type[np.generic]) -> None:
        self.places = np.empty(size, np.uint32)
        self.numbers: NDArray[Any] = np.empty(size, dtype)

    def kept(self, count: int) -> tuple[Positions, NDArray[Any]]:
        """Copies of the first `count` places and numbers, just as large as they need to be."""
        return self.places[:count].copy(), self.numbers[:count].copy()


class Quantizer(Protocol):
    @property
    def dtype(self) -> type[np.generic]:
        """Of the numbers it makes of values."""

    def quantize(
        self, c: Vector, base: int, marks: Marks | Reaching, seed: int, room: Room | None = None
    ) -> tuple[Positions, Values]:
        """The values of one layer, and their places in the whole vector: fewer than marked where some became zero.

        `room` has place for the layer, and may be used for others afterwards.
        """


@dataclass(frozen=True)
class Float32:
    """As they are."""

    dtype: ClassVar[type[np.generic]] = np.float32

    def quantize(
        self, c: Vector, base: int, marks: Marks | Reaching, seed: int, room: Room | None = None
    ) -> tuple[Positions, Values]:
        room = room or Room(c.size, self.dtype)
        count = kernels.take_floats(c, *_words_or_limit(marks), base, room.places, room.numbers)
        positions, values = room.kept(count)
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
        count = kernels.take_halves(c, *_words_or_limit(marks), base, *drawn, room.places, room.numbers)
        positions, halves = room.kept(count)
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
        places, values = places[nonzero], Steps(step, signed[nonzero])
        c[places] -= values.decoded()
        return places + np.uint32(base), values


def _words_or_limit(marks: Marks | Reaching) -> tuple[NDArray[np.uint64], np.float32]:
    """What the loops take: a bitmap, or an empty one and a limit."""
    return (_NO_WORDS, marks.limit) if isinstance(marks, Reaching) else (marks.words, np.float32(0))


def round_up(value: float) -> np.float32:
    """The least finite float32 that is not below value: as the step, it keeps every level within their number."""
    value = min(value, _LARGEST)
    rounded = np.float32(value)
    return rounded if float(rounded) >= value else np.nextafter(rounded, np.float32(np.inf))
