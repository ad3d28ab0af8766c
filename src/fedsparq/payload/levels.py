"""Values that are signed whole levels: how levels are written, and scales read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.layout import Tensor, Vector
from fedsparq.payload import kernels
from fedsparq.payload.streams import Reader, Writer
from fedsparq.payload.values import LARGEST_FLOAT32, Values

MAX_LEVEL = 32767


class LevelsHeader(NamedTuple):
    """What the chunks of a layer share: its highest level, and what levels are multiplied with or looked up in."""

    top: int
    scale: Vector
    bucket: int = 0


class Levels(Values):
    """Signed whole numbers from -top to top, never 0."""

    levels: NDArray[np.int16]

    def __len__(self) -> int:
        return self.levels.size

    @property
    @abstractmethod
    def _decoded(self) -> Vector:
        """What `decode` returns: a cached property."""

    def decode(self) -> Vector:
        return self._decoded

    @cached_property
    def top(self) -> int:
        """The highest level that may occur; 0 if none may."""
        return int(np.abs(self.levels).max(initial=0))

    def symbols(self) -> Iterator[NDArray[Any]]:
        yield self.levels

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
            raise WireError(f"layer {tensor.name!r}: a level is above {header.top}, or bits stand behind the last one")
        levels = above.astype(np.int16) + np.int16(1)
        return np.where(signs, -levels, levels)


class ScaledLevels(Levels):
    """Levels whose value does not depend on their index: one scale or table stands for the layer.

    These can be coded by context, a whole model at once. Then headers may be short: if no scale has a one among its
    lower 16 bits, only the upper 16 are written.
    """

    @property
    @abstractmethod
    def scale(self) -> Vector:
        """The numbers of the header."""

    @property
    def is_short(self) -> bool:
        return not (self.scale.view(np.uint32) & 0xFFFF).any()

    @abstractmethod
    def write_header(self, writer: Writer, short: bool = False) -> None: ...

    @classmethod
    @abstractmethod
    def read_header(cls, reader: Reader, code: int, tensor: Tensor, short: bool = False) -> LevelsHeader: ...


def write_scale(writer: Writer, scale: Vector, short: bool = False) -> None:
    writer.raw((scale.view(np.uint32) >> 16).astype("<u2") if short else scale.astype("<f4", copy=False))


def read_scale(reader: Reader, count: int, most: int, tensor: Tensor, short: bool = False) -> Vector:
    """`count` numbers of at least 0 that stay finite when multiplied by `most`."""
    if short:
        scale: Vector = (reader.array("<u2", count).astype(np.uint32) << 16).view(np.float32)
    else:
        scale = reader.array("<f4", count)
    if not np.isfinite(scale).all() or (scale < 0).any() or float(scale.max(initial=0)) * most > LARGEST_FLOAT32:
        raise WireError(f"layer {tensor.name!r}: a step, magnitude or scale is negative, not a number or too large")
    return scale


def _planes(top: int) -> list[tuple[int, int]]:
    """(shift, width) of the byte planes that levels 1 to `top` need, less one and without sign."""
    width = max(top - 1, 0).bit_length()
    return [(shift, min(8, width - shift)) for shift in range(0, width, 8)]
