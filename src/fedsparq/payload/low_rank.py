"""A matrix as the product of two thin ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.layout import Tensor, Vector
from fedsparq.payload.streams import Reader, Writer
from fedsparq.payload.values import LARGEST_FLOAT32, LazyIndices, Values, built_in

Factor = NDArray[np.float32]
"""A matrix of as many columns as the rank."""


@built_in
@dataclass(frozen=True)
class LowRank(Values):
    """Every coordinate of a layer, as left x right^T: a row of the layer for each index of its first dimension."""

    left: Factor
    right: Factor
    code: ClassVar[int] = 14
    needs_every_coordinate: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.left) * len(self.right)

    def decode(self) -> Vector:
        return self._decoded

    @cached_property
    def _decoded(self) -> Vector:
        product = np.zeros((len(self.left), len(self.right)), np.float32)
        for left, right in zip(self.left.T, self.right.T, strict=True):
            product += left[:, None] * right
        return product.reshape(-1)

    def scaled(self, share: np.float32) -> LowRank:
        return LowRank(self.left, share * self.right)

    def symbols(self) -> Iterator[NDArray[Any]]:
        both = np.concatenate([self.left.reshape(-1), self.right.reshape(-1)])
        yield from both.view(np.uint8).reshape(-1, 4).T

    def write_header(self, writer: Writer) -> None:
        writer.byte(self.code)
        writer.varint(self.left.shape[1])
        writer.raw(np.ascontiguousarray(self.left, "<f4").view(np.uint8).reshape(-1))
        writer.raw(np.ascontiguousarray(self.right, "<f4").view(np.uint8).reshape(-1))

    def write(self, writer: Writer, part: slice) -> None:
        """Nothing: all is in the header."""

    @classmethod
    def read_header(cls, reader: Reader, code: int, tensor: Tensor) -> tuple[Factor, Factor]:
        rows, columns = matrix_shape(tensor)
        rank = reader.varint(min(rows, columns))
        left = reader.array("<f4", rows * rank).reshape(rows, rank)
        right = reader.array("<f4", columns * rank).reshape(columns, rank)
        largest = float(np.abs(left).max(initial=0)) * float(np.abs(right).max(initial=0)) * rank
        if not (np.isfinite(left).all() and np.isfinite(right).all() and largest <= LARGEST_FLOAT32):
            raise WireError(f"layer {tensor.name!r}: a factor is not a number, or the product too large")
        return left, right

    @classmethod
    def read(cls, reader: Reader, header: tuple[Factor, Factor], count: int, tensor: Tensor) -> NDArray[Any]:
        return np.empty(0, np.uint8)

    @classmethod
    def join(cls, header: tuple[Factor, Factor], data: NDArray[Any], indices: LazyIndices, tensor: Tensor) -> LowRank:
        return cls(*header)


def matrix_shape(tensor: Tensor) -> tuple[int, int]:
    """Rows and columns of a layer as a matrix: a tensor of less than two dimensions is one row."""
    return (1, tensor.size) if len(tensor.shape) < 2 else (tensor.shape[0], math.prod(tensor.shape[1:]))
