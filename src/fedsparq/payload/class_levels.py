"""Multiples of a few steps, each for magnitudes of its own class."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.layout import Tensor, Vector
from fedsparq.payload.levels import MAX_LEVEL, ScaledLevels, read_scale, write_scale
from fedsparq.payload.streams import Reader, Writer
from fedsparq.payload.values import LARGEST_FLOAT32, LazyIndices, built_in

MOST_CLASSES = 8


class ClassHeader(NamedTuple):
    """What the chunks of a layer share: its highest level, and the step and highest multiple of each class."""

    top: int
    scale: Vector
    tops: tuple[int, ...]


@built_in
@dataclass(frozen=True)
class ClassLevels(ScaledLevels):
    """A class and a whole multiple of its step, counted through: levels 1 to tops[0] are multiples of steps[0], the
    next tops[1] levels those of steps[1], and so on. So the class of each value is coded with its level.
    """

    steps: Vector
    tops: tuple[int, ...]
    levels: NDArray[np.int16]
    code: ClassVar[int] = 18

    @cached_property
    def _decoded(self) -> Vector:
        multiples = [
            step * np.arange(1, top + 1, dtype=np.float32) for step, top in zip(self.steps, self.tops, strict=True)
        ]
        table = np.concatenate([np.zeros(1, np.float32), *multiples])
        return np.where(self.levels < 0, -table[np.abs(self.levels)], table[np.abs(self.levels)])

    @cached_property
    def top(self) -> int:
        return sum(self.tops)

    @property
    def scale(self) -> Vector:
        return self.steps

    def write_header(self, writer: Writer, short: bool = False) -> None:
        writer.byte(self.code)
        writer.varint(len(self.tops))
        for top in self.tops:
            writer.varint(top)
        write_scale(writer, self.steps, short)

    @classmethod
    def read_header(cls, reader: Reader, code: int, tensor: Tensor, short: bool = False) -> ClassHeader:  # type: ignore[override]
        tops = tuple(reader.varint(MAX_LEVEL) for _ in range(reader.varint(MOST_CLASSES)))
        if not all(tops) or sum(tops) > MAX_LEVEL:
            raise WireError(f"layer {tensor.name!r}: its classes have {tops} levels, of {MAX_LEVEL} at most in all")
        steps = read_scale(reader, len(tops), 1, tensor, short)
        if (steps.astype(np.float64) * tops > LARGEST_FLOAT32).any():
            raise WireError(f"layer {tensor.name!r}: a step is too large")
        return ClassHeader(sum(tops), steps, tops)

    @classmethod
    def join(cls, header: ClassHeader, data: NDArray[Any], indices: LazyIndices, tensor: Tensor) -> ClassLevels:
        return cls(header.scale, header.tops, data.astype(np.int16, copy=False))
