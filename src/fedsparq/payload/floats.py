"""Values as floating-point numbers: float32, and float16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.layout import Tensor, Vector
from fedsparq.payload import kernels
from fedsparq.payload.selection import Indices
from fedsparq.payload.streams import MIN_ZSTD_INPUT, Bytes, Reader, Writer
from fedsparq.payload.values import LazyIndices, Values, register_builtin

_SAMPLE = 4096
_MAX_REPEAT_RATIO = 20
"""Low bytes are worth trying zstd on if one of them makes up more than a twentieth of a sample."""
_INFINITE = 0x7C00


@register_builtin
@dataclass(frozen=True)
class Float32Values(Values):
    """Values as they are, not compressed."""

    data: Vector
    code: ClassVar[int] = 0

    def __len__(self) -> int:
        return self.data.size

    def decode(self) -> Vector:
        return self.data

    def scaled(self, factor: np.float32) -> Float32Values:
        return Float32Values(factor * self.data)

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


@register_builtin
@dataclass(frozen=True)
class Float16Values(Values):
    """Values as float16, kept as their bits: numpy's own float16 is slow. Sums are made of the bits directly."""

    bits: NDArray[np.uint16]
    code: ClassVar[int] = 1

    def __len__(self) -> int:
        return self.bits.size

    def decode(self) -> Vector:
        out = np.empty(self.bits.size, np.float32)
        kernels.halves_to_floats(self.bits, out)
        return out

    def add_to(self, accumulator: Vector, indices: Indices | None, weight: np.float32) -> None:
        kernels.add_scaled_halves(accumulator, indices, self.bits, weight)

    def scaled(self, factor: np.float32) -> Float16Values:
        return Float16Values((factor * self.decode()).astype(np.float16).view(np.uint16))

    def raw_bytes(self) -> int:
        return self.bits.nbytes

    def largest(self) -> float:
        bits = (self.bits & np.uint16(0x7FFF)).max(initial=0)
        return float(bits.view(np.float16)) if bits < _INFINITE else np.nan

    def write(self, writer: Writer, part: slice) -> None:
        halves = self.bits[part]
        high, low = np.empty(halves.size, np.uint8), np.empty(halves.size, np.uint8)
        kernels.split_halves(halves, high, low)
        writer.stream(high, writer.compress(high))
        writer.stream(low, writer.compress(low) if _is_compressible(low) else None)

    @classmethod
    def read(cls, reader: Reader, header: None, count: int, tensor: Tensor) -> NDArray[Any]:
        high, _ = reader.stream(count, count)
        low, _ = reader.stream(count, count)
        halves = np.empty(count, np.uint16)
        if kernels.join_halves(high, low, halves) < 0:
            raise WireError(f"layer {tensor.name!r}: a value is infinite or not a number")
        return halves

    @classmethod
    def join(cls, header: None, data: NDArray[Any], indices: LazyIndices, tensor: Tensor) -> Float16Values:
        return cls(data.astype(np.uint16, copy=False))


def _is_compressible(data: Bytes) -> bool:
    """Return whether some byte is so common in a sample that zstd is worth trying."""
    sample = data[:_SAMPLE]
    return sample.size >= MIN_ZSTD_INPUT and int(np.bincount(sample).max()) * _MAX_REPEAT_RATIO > sample.size
