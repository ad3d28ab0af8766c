"""How kept values are written. A quantizer takes what will be decoded away from `c`, which becomes the residual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from fedsparq.compress import kernels
from fedsparq.compress.payload import Floats, Halves, Positions, Steps, Values
from fedsparq.compress.select import Marks
from fedsparq.compress.state import Vector
from fedsparq.errors import OptionError

MAX_LEVELS = 32767
_LARGEST = float(np.finfo(np.float32).max)


class Quantizer(Protocol):
    def quantize(self, c: Vector, base: int, marks: Marks, seed: int) -> tuple[Positions, Values]:
        """The values of one layer, and their places in the whole vector: fewer than marked where some became zero."""


@dataclass(frozen=True)
class Float32:
    """As they are."""

    def quantize(self, c: Vector, base: int, marks: Marks, seed: int) -> tuple[Positions, Values]:
        positions, values = np.empty(marks.count, np.uint32), np.empty(marks.count, np.float32)
        kernels.take_floats(c, marks.words, base, positions, values)
        return positions, Floats(values)


@dataclass(frozen=True)
class Float16:
    """Half precision, saturating at 65504: what does not fit stays in the residual."""

    rounding: Literal["nearest", "stochastic"] = "nearest"

    def quantize(self, c: Vector, base: int, marks: Marks, seed: int) -> tuple[Positions, Values]:
        positions, halves = np.empty(marks.count, np.uint32), np.empty(marks.count, np.uint16)
        stochastic = self.rounding == "stochastic"
        kernels.take_halves(c, marks.words, base, stochastic, np.uint64(seed), positions, halves)
        return positions, Halves(halves)


@dataclass(frozen=True)
class QSGD:
    """Unbiased stochastic levels of the layer's norm; the norm is sent once, as the step norm / levels."""

    levels: int

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= MAX_LEVELS:
            raise OptionError(f"levels={self.levels} is out of range; it must be from 1 to {MAX_LEVELS}")

    def quantize(self, c: Vector, base: int, marks: Marks, seed: int) -> tuple[Positions, Values]:
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


def round_up(value: float) -> np.float32:
    """The least finite float32 that is not below value: as the step, it keeps every level within their number."""
    value = min(value, _LARGEST)
    rounded = np.float32(value)
    return rounded if float(rounded) >= value else np.nextafter(rounded, np.float32(np.inf))
