"""A sign and one of a few magnitudes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsparq.layout import Tensor, Vector
from fedsparq.payload.levels import LevelsHeader, ScaledLevels, read_scale, write_scale
from fedsparq.payload.streams import Reader, Writer
from fedsparq.payload.values import LazyIndices, built_in


@built_in
@dataclass(frozen=True)
class Codebook(ScaledLevels):
    """A sign and one of up to 63 magnitudes: value = ± table[abs(level) - 1]. Its code holds the size of the table."""

    table: Vector
    levels: NDArray[np.int16]
    code: ClassVar[int] = 3

    @cached_property
    def _decoded(self) -> Vector:
        signed = np.concatenate([-self.table[::-1], np.zeros(1, np.float32), self.table])
        return np.take(signed, self.levels + np.int16(self.table.size))

    @cached_property
    def top(self) -> int:
        return self.table.size

    @property
    def scale(self) -> Vector:
        return self.table

    def write_header(self, writer: Writer, short: bool = False) -> None:
        writer.byte(self.code | self.table.size << 2)
        write_scale(writer, self.table, short)

    @classmethod
    def read_header(cls, reader: Reader, code: int, tensor: Tensor, short: bool = False) -> LevelsHeader:
        return LevelsHeader(code >> 2, read_scale(reader, code >> 2, 1, tensor, short))

    @classmethod
    def join(cls, header: LevelsHeader, data: NDArray[Any], indices: LazyIndices, tensor: Tensor) -> Codebook:
        return cls(header.scale, data.astype(np.int16, copy=False))
