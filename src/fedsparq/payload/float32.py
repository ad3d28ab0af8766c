"""Values as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.layout import Tensor, Vector
from fedsparq.payload.streams import Reader, Writer
from fedsparq.payload.values import LazyIndices, Values, built_in


@built_in
@dataclass(frozen=True)
class Float32Values(Values):
    """Values as they are, not compressed."""

    data: Vector
    code: ClassVar[int] = 0

    def __len__(self) -> int:
        return self.data.size

    def decode(self) -> Vector:
        return self.data

    def write(self, writer: Writer, part: slice) -> None:
        writer.raw(self.data[part].astype("<f4", copy=False))

    @classmethod
    def read(cls, reader: Reader, header: None, count: int, tensor: Tensor) -> NDArray[Any]:
        values = reader.array("<f4", count)
        if not np.isfinite(values).all():
            raise WireError(f"layer {tensor.name!r}: a value is infinite or not a number")
        return values

    @classmethod
    def join(cls, header: None, data: NDArray[Any], indices: LazyIndices, tensor: Tensor) -> Float32Values:
        return cls(data.astype(np.float32, copy=False))
