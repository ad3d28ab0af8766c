"""Values that are signed integer levels times a scale: uniform levels, class levels, a codebook, bucket levels."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.layout import MAX_SIZE, Tensor, Vector
from fedsparq.payload import kernels
from fedsparq.payload.streams import Reader, Writer
from fedsparq.payload.values import LARGEST_FLOAT32, CachedValues, LazyIndices, Values, register_builtin

MAX_LEVEL = 32767
_MAX_CLASSES = 8
_NO_LEVELS = np.empty(0, np.int16)


class Levels(CachedValues):
    """Signed integers from -top to top, never 0, times the numbers of a scale."""

    levels: NDArray[np.int16]

    def __len__(self) -> int:
        return self.levels.size

    @cached_property
    def top(self) -> int:
        """The highest level that may occur; 0 if none may."""
        return int(np.abs(self.levels).max(initial=0))

    @property
    @abstractmethod
    def scale(self) -> Vector:
        """The numbers of the header."""

    @property
    def is_short(self) -> bool:
        """Whether the lower two bytes of every number of the scale are zero."""
        return not (self.scale.view(np.uint32) & 0xFFFF).any()

    @abstractmethod
    def _with_scale(self, scale: Vector) -> Values:
        """Return the same levels with other numbers in the header."""

    def scaled(self, factor: np.float32) -> Values:
        """Multiply the scale alone, so that no byte is added: a short one stays so, rounded towards 0."""
        scale = np.float32(factor) * self.scale
        return self._with_scale((scale.view(np.uint32) & 0xFFFF0000).view(np.float32) if self.is_short else scale)

    def raw_bytes(self) -> int:
        """Count a sign and the bits of the highest level for each."""
        bits = 1 + (int(np.abs(self.levels).max(initial=1)) - 1).bit_length()
        return (len(self) * bits + 7) // 8

    def write(self, writer: Writer, part: slice) -> None:
        levels = self.levels[part]
        writer.raw(np.packbits(levels < 0, bitorder="little"))
        above = (np.abs(levels) - 1).astype(np.uint16)
        for shift, width in _planes(self.top):
            plane = (above >> shift).astype(np.uint8)
            packed = np.empty((plane.size * width + 7) // 8, np.uint8)
            kernels.pack(plane, width, packed)
            frame = writer.compress(plane)
            writer.stream(packed, frame if frame and len(frame) < packed.size else None)

    @classmethod
    def read(cls, reader: Reader, header: LevelsHeader, count: int, tensor: Tensor) -> NDArray[Any]:
        if not header.top:
            raise WireError(f"layer {tensor.name!r} sends values but has no level for them")
        signs = np.empty(count, np.uint8)
        sound = kernels.unpack(reader.take((count + 7) // 8), 1, signs)
        above = np.zeros(count, np.uint16)
        for shift, width in _planes(header.top):
            data, raw = reader.stream((count * width + 7) // 8, count)
            plane = np.empty(count, np.uint8) if raw else data
            if raw:
                sound |= kernels.unpack(data, width, plane)
            above |= plane.astype(np.uint16) << np.uint16(shift)
        if sound < 0 or (above >= header.top).any():
            raise WireError(f"layer {tensor.name!r}: a level is above {header.top}, or there are trailing bits")
        levels = above.astype(np.int16) + np.int16(1)
        return np.where(signs, -levels, levels)

    @classmethod
    def join(cls, header: LevelsHeader, data: NDArray[Any], indices: LazyIndices, tensor: Tensor) -> Levels:
        return replace(header.values, levels=data.astype(np.int16, copy=False))  # type: ignore[type-var]


class LevelsHeader(NamedTuple):
    """What the chunks of a layer share."""

    top: int
    """The highest level that may occur."""
    values: Levels
    """The values without their levels."""


class ScaledLevels(Levels):
    """Levels whose value does not depend on their index: one scale or table stands for the layer.

    These can be coded by context, a whole model at once. Then headers may be short: if no scale has a one among its
    lower 16 bits, only the upper 16 are written.
    """

    @abstractmethod
    def write_header(self, writer: Writer, short: bool = False) -> None: ...

    @classmethod
    @abstractmethod
    def read_header(cls, reader: Reader, code: int, tensor: Tensor, short: bool = False) -> LevelsHeader: ...


@register_builtin
@dataclass(frozen=True)
class UniformLevels(ScaledLevels):
    """Integer multiples of one step: value = step * level, level from -32767 to 32767 but never 0."""

    step: np.float32
    levels: NDArray[np.int16]
    code: ClassVar[int] = 2

    @cached_property
    def _decoded(self) -> Vector:
        return self.levels.astype(np.float32) * self.step

    @property
    def scale(self) -> Vector:
        return np.array([self.step], np.float32)

    def _with_scale(self, scale: Vector) -> Values:
        """Return levels of one class if the step is 0, which is not allowed here."""
        return (
            replace(self, step=scale[0]) if scale[0] or not self.top else ClassLevels(scale, (self.top,), self.levels)
        )

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
        return LevelsHeader(top, cls(step[0] if top else np.float32(0), _NO_LEVELS))


@register_builtin
@dataclass(frozen=True)
class ClassLevels(ScaledLevels):
    """A class and an integer multiple of its step, numbered across classes: levels 1 to tops[0] are multiples of
    steps[0], the next tops[1] levels those of steps[1], and so on. So the class of each value is coded with its level.
    """

    steps: Vector
    tops: tuple[int, ...]
    levels: NDArray[np.int16]
    code: ClassVar[int] = 18

    @cached_property
    def _decoded(self) -> Vector:
        ends, above = np.cumsum(self.tops, dtype=np.int64), np.abs(self.levels.astype(np.int64))
        number = np.searchsorted(ends, above)
        values: Vector = self.steps[number] * (above - (ends - self.tops)[number]).astype(np.float32)
        return np.where(self.levels < 0, -values, values)

    @cached_property
    def top(self) -> int:
        return sum(self.tops)

    @property
    def scale(self) -> Vector:
        return self.steps

    def _with_scale(self, scale: Vector) -> ClassLevels:
        return replace(self, steps=scale)

    def write_header(self, writer: Writer, short: bool = False) -> None:
        writer.byte(self.code)
        writer.varint(len(self.tops))
        for top in self.tops:
            writer.varint(top)
        write_scale(writer, self.steps, short)

    @classmethod
    def read_header(cls, reader: Reader, code: int, tensor: Tensor, short: bool = False) -> LevelsHeader:
        tops = tuple(reader.varint(MAX_LEVEL) for _ in range(reader.varint(_MAX_CLASSES)))
        if not all(tops) or sum(tops) > MAX_LEVEL:
            raise WireError(f"layer {tensor.name!r}: its classes have {tops} levels, of {MAX_LEVEL} at most in all")
        steps = read_scale(reader, len(tops), 1, tensor, short)
        if (steps.astype(np.float64) * tops > LARGEST_FLOAT32).any():
            raise WireError(f"layer {tensor.name!r}: a step is too large")
        return LevelsHeader(sum(tops), cls(steps, tops, _NO_LEVELS))


@register_builtin
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

    def _with_scale(self, scale: Vector) -> Codebook:
        return replace(self, table=scale)

    def write_header(self, writer: Writer, short: bool = False) -> None:
        writer.byte(self.code | self.table.size << 2)
        write_scale(writer, self.table, short)

    @classmethod
    def read_header(cls, reader: Reader, code: int, tensor: Tensor, short: bool = False) -> LevelsHeader:
        return LevelsHeader(code >> 2, cls(read_scale(reader, code >> 2, 1, tensor, short), _NO_LEVELS))


@register_builtin
@dataclass(frozen=True)
class BucketLevels(Levels):
    """Integer multiples of the step of a bucket: `bucket` consecutive coordinates of the layer."""

    bucket: int
    steps: Vector
    owners: NDArray[np.uint32]
    """The bucket of each value, which follows from its index."""
    levels: NDArray[np.int16]
    code: ClassVar[int] = 6

    @cached_property
    def _decoded(self) -> Vector:
        return self.levels.astype(np.float32) * self.steps[self.owners]

    @property
    def scale(self) -> Vector:
        return self.steps

    def _with_scale(self, scale: Vector) -> BucketLevels:
        return replace(self, steps=scale)

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
        steps = read_scale(reader, -(-tensor.size // bucket), max(top, 1), tensor)
        return LevelsHeader(top, cls(bucket, steps, np.empty(0, np.uint32), _NO_LEVELS))

    @classmethod
    def join(cls, header: LevelsHeader, data: NDArray[Any], indices: LazyIndices, tensor: Tensor) -> BucketLevels:
        values = cast(BucketLevels, super().join(header, data, indices, tensor))
        return replace(values, owners=indices() // np.uint32(values.bucket))


def write_scale(writer: Writer, scale: Vector, short: bool = False) -> None:
    writer.raw((scale.view(np.uint32) >> 16).astype("<u2") if short else scale.astype("<f4", copy=False))


def read_scale(reader: Reader, count: int, most: int, tensor: Tensor, short: bool = False) -> Vector:
    """Read `count` numbers of at least 0 that stay finite when multiplied by `most`."""
    if short:
        scale: Vector = (reader.array("<u2", count).astype(np.uint32) << 16).view(np.float32)
    else:
        scale = reader.array("<f4", count)
    if not np.isfinite(scale).all() or (scale < 0).any() or float(scale.max(initial=0)) * most > LARGEST_FLOAT32:
        raise WireError(f"layer {tensor.name!r}: a step, magnitude or scale is negative, not a number or too large")
    return scale


def _planes(top: int) -> list[tuple[int, int]]:
    """Return (shift, width) of the byte planes that levels 1 to `top` need, less one and without sign."""
    width = max(top - 1, 0).bit_length()
    return [(shift, min(8, width - shift)) for shift in range(0, width, 8)]
