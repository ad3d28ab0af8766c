"""The largest coefficients of a layer's blocks under a cosine transform."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.layout import Tensor, Vector
from fedsparq.payload.low_rank import matrix_shape
from fedsparq.payload.streams import Reader, Writer
from fedsparq.payload.values import LARGEST_FLOAT32, WholeLayer, register_builtin

MAX_SIDE = 64


@dataclass(frozen=True)
class Blocks:
    """How a layer is cut into blocks of equal shape."""

    rows: int
    columns: int
    height: int
    width: int

    @property
    def count(self) -> int:
        return (self.rows // self.height) * (self.columns // self.width)

    @property
    def size(self) -> int:
        return self.height * self.width

    @classmethod
    def of(cls, tensor: Tensor) -> Blocks:
        """Choose the blocks of a layer: each side is the largest number up to 64 that divides the layer's."""
        rows, columns = matrix_shape(tensor)
        return cls(rows, columns, _divisor(rows), _divisor(columns))

    def cut(self, layer: Vector) -> NDArray[np.float64]:
        """Return the blocks of a layer, in rows of blocks."""
        shape = self.rows // self.height, self.height, self.columns // self.width, self.width
        return layer.reshape(shape).swapaxes(1, 2).reshape(-1, self.height, self.width).astype(np.float64)

    def joined(self, blocks: NDArray[np.float64]) -> Vector:
        """Undo `cut`."""
        shape = self.rows // self.height, self.columns // self.width, self.height, self.width
        return blocks.reshape(shape).swapaxes(1, 2).reshape(-1).astype(np.float32)

    def transformed(self, blocks: NDArray[np.float64]) -> NDArray[np.float64]:
        return cosines(self.height) @ blocks @ cosines(self.width).T

    def restored(self, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        return cosines(self.height).T @ coefficients @ cosines(self.width)


@register_builtin
@dataclass(frozen=True)
class CosineBlocks(WholeLayer):
    """Every coordinate of a layer, from the same number of coefficients of each of its blocks."""

    blocks: Blocks
    indices: NDArray[np.uint16]
    """Of the coefficients in their blocks, strictly rising: [blocks, kept]."""
    coefficients: NDArray[np.float32]
    code: ClassVar[int] = 26

    def __len__(self) -> int:
        return self.blocks.rows * self.blocks.columns

    @cached_property
    def _decoded(self) -> Vector:
        shape = self.blocks
        dense = np.zeros((shape.count, shape.size))
        np.put_along_axis(dense, self.indices.astype(np.int64), self.coefficients, axis=1)
        return shape.joined(shape.restored(dense.reshape(-1, shape.height, shape.width)))

    def scaled(self, factor: np.float32) -> CosineBlocks:
        return CosineBlocks(self.blocks, self.indices, factor * self.coefficients)

    def raw_bytes(self) -> int:
        return self.indices.nbytes + self.coefficients.nbytes

    @property
    def _gaps(self) -> NDArray[np.uint16]:
        """How many coefficients are skipped before each that is sent."""
        before = np.concatenate([np.full((len(self.indices), 1), -1), self.indices[:, :-1].astype(np.int64)], axis=1)
        gaps: NDArray[np.uint16] = (self.indices - before - 1).astype(np.uint16).reshape(-1)
        return gaps

    def write_header(self, writer: Writer) -> None:
        writer.byte(self.code)
        writer.varint(self.indices.shape[1])
        gaps = self._gaps
        for half in (gaps & 0xFF, gaps >> 8):
            data = half.astype(np.uint8)
            writer.stream(data, writer.compress(data))
        writer.raw(self.coefficients.astype("<f4", copy=False))

    @classmethod
    def read_header(cls, reader: Reader, code: int, tensor: Tensor) -> CosineBlocks:
        blocks = Blocks.of(tensor)
        kept = reader.varint(blocks.size)
        count = kept * blocks.count
        low, high = (reader.stream(count, count)[0].astype(np.int64) for _ in range(2))
        indices = np.cumsum((low + (high << 8) + 1).reshape(blocks.count, kept), axis=1) - 1
        coefficients = reader.array("<f4", count).reshape(blocks.count, kept)
        with np.errstate(invalid="ignore", over="ignore"):
            sound = (np.abs(coefficients).sum(axis=1, dtype=np.float64) <= LARGEST_FLOAT32).all()
        if not sound or (indices >= blocks.size).any():
            raise WireError(f"layer {tensor.name!r}: a coefficient is too large, not a number, or outside its block")
        return cls(blocks, indices.astype(np.uint16), coefficients)


@cache
def cosines(size: int) -> NDArray[np.float64]:
    """Return the orthonormal DCT-II of `size` coordinates, one frequency per row."""
    rows = [[math.cos(math.pi * (2 * i + 1) * k / (2 * size)) for i in range(size)] for k in range(size)]
    scale = [math.sqrt((2 if k else 1) / size) for k in range(size)]
    made: NDArray[np.float64] = np.array(rows).reshape(size, size) * np.array(scale).reshape(size, 1)
    return made


@cache
def _divisor(side: int) -> int:
    return next((size for size in range(min(side, MAX_SIDE), 0, -1) if side % size == 0), 1)
