"""Multiples of one step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.layout import Tensor, Vector
from fedsparq.payload.levels import MAX_LEVEL, LevelsHeader, ScaledLevels, read_scale, write_scale
from fedsparq.payload.streams import Reader, Writer
from fedsparq.payload.values import LARGEST_FLOAT32, LazyIndices, built_in


@built_in
@dataclass(frozen=True)
class UniformLevels(ScaledLevels):
    """Whole multiples of one step: value = step * level, level from -32767 to 32767 but never 0."""

    step: np.float32
    levels: NDArray[np.int16]
    code: ClassVar[int] = 2

    @cached_property
    def _decoded(self) -> Vector:
        return self.levels.astype(np.float32) * self.step

    @property
    def scale(self) -> Vector:
        return np.array([self.step], np.float32)

    def largest(self) -> float:
        largest = self.top * abs(float(self.step))
        return float(np.float32(largest)) if largest <= LARGEST_FLOAT32 else math.nan

    def write_header(self, writer: Writer, short: bool = False) -> None:
        writer.byte(self.code)
        writer.varint(self.top)
        if self.top:
            write_scale(writer, self.scale, short)

    @classmethod
    def read_header(cls, reader: Reader, code: int, tensor: Tensor, short: bool = False) -> LevelsHeader:
        top = reader.varint(MAX_LEVEL)
        step = read_scale(reader, 1 if top else 0, top, tensor, short)
        if top and step[0] == 0:
            raise WireError(f"layer {tensor.name!r}: its step is 0")
        return LevelsHeader(top, step)

    @classmethod
    def join(cls, header: LevelsHeader, data: NDArray[Any], indices: LazyIndices, tensor: Tensor) -> UniformLevels:
        return cls(header.scale[0] if header.top else np.float32(0), data.astype(np.int16, copy=False))
