"""Multiples of a step that differs from bucket to bucket."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.layout import MAX_SIZE, Tensor, Vector
from fedsparq.payload.levels import MAX_LEVEL, Levels, LevelsHeader, read_scale, write_scale
from fedsparq.payload.streams import Reader, Writer
from fedsparq.payload.values import LazyIndices, built_in


@built_in
@dataclass(frozen=True)
class BucketLevels(Levels):
    """Whole multiples of the step of a bucket, which is so many coordinates of the layer in a row."""

    bucket: int
    steps: Vector
    owners: NDArray[np.uint32]
    """Which bucket each value lies in; the indices of the values tell."""
    levels: NDArray[np.int16]
    code: ClassVar[int] = 6

    @cached_property
    def _decoded(self) -> Vector:
        return self.levels.astype(np.float32) * self.steps[self.owners]

    def write_header(self, writer: Writer) -> None:
        writer.byte(self.code)
        writer.varint(self.bucket)
        writer.varint(self.top)
        write_scale(writer, self.steps)

    @classmethod
    def read_header(cls, reader: Reader, code: int, tensor: Tensor) -> LevelsHeader:
        bucket = reader.varint(MAX_SIZE)
        if bucket == 0:
            raise WireError(f"layer {tensor.name!r}: its buckets have no size")
        top = reader.varint(MAX_LEVEL)
        return LevelsHeader(top, read_scale(reader, -(-tensor.size // bucket), max(top, 1), tensor), bucket)

    @classmethod
    def join(cls, header: LevelsHeader, data: NDArray[Any], indices: LazyIndices, tensor: Tensor) -> BucketLevels:
        owners = indices() // np.uint32(header.bucket)
        return cls(header.bucket, header.scale, owners, data.astype(np.int16, copy=False))
