"""A matrix as the product of two thin ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsparq.compiled import jit
from fedsparq.errors import WireError
from fedsparq.layout import Tensor, Vector
from fedsparq.payload.streams import Reader, Writer
from fedsparq.payload.values import LARGEST_FLOAT32, WholeLayer, register_builtin

Factor = NDArray[np.float32]
"""A matrix of as many columns as the rank."""

MAX_RANK = 128


@register_builtin
@dataclass(frozen=True)
class LowRank(WholeLayer):
    """Every coordinate of a layer, as left x right^T: a row of the layer for each index of its first dimension."""

    left: Factor
    right: Factor
    code: ClassVar[int] = 14

    def __len__(self) -> int:
        return len(self.left) * len(self.right)

    @cached_property
    def _decoded(self) -> Vector:
        product = np.zeros((len(self.left), len(self.right)), np.float32)
        _add_products(np.ascontiguousarray(self.left), np.ascontiguousarray(self.right.T), product)
        return product.reshape(-1)

    def scaled(self, factor: np.float32) -> LowRank:
        return LowRank(self.left, factor * self.right)

    def raw_bytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    def write_header(self, writer: Writer) -> None:
        writer.byte(self.code)
        writer.varint(self.left.shape[1])
        writer.raw(self.left.astype("<f4", copy=False))
        writer.raw(self.right.astype("<f4", copy=False))

    @classmethod
    def read_header(cls, reader: Reader, code: int, tensor: Tensor) -> LowRank:
        rows, columns = matrix_shape(tensor)
        rank = reader.varint(min(rows, columns))
        if not pays(rank, rows, columns):
            raise WireError(
                f"layer {tensor.name!r}: factors of rank {rank} for {rows} x {columns}; "
                f"the rank is {MAX_RANK} at most, and the factors have no more numbers than the layer"
            )
        left = reader.array("<f4", rows * rank).reshape(rows, rank)
        right = reader.array("<f4", columns * rank).reshape(columns, rank)
        largest = float(np.abs(left).max(initial=0)) * float(np.abs(right).max(initial=0)) * rank
        if not (np.isfinite(left).all() and np.isfinite(right).all() and largest <= LARGEST_FLOAT32):
            raise WireError(f"layer {tensor.name!r}: a factor is not a number, or the product too large")
        return cls(left, right)


def matrix_shape(tensor: Tensor) -> tuple[int, int]:
    """Return rows and columns of a layer as a matrix: a tensor of less than two dimensions is one row."""
    return (1, tensor.size) if len(tensor.shape) < 2 else (tensor.shape[0], math.prod(tensor.shape[1:]))


def pays(rank: int, rows: int, columns: int) -> bool:
    """Return whether a layer may be sent as factors of this rank: it bounds the decoding work by the layer's size."""
    return rank <= MAX_RANK and rank * (rows + columns) <= rows * columns


@jit
def _add_products(left: Any, right: Any, product: Any) -> None:
    """Compute product += left x right, one factor after the other in each row."""
    for i in range(left.shape[0]):
        for k in range(left.shape[1]):
            factor = left[i, k]
            for j in range(right.shape[1]):
                product[i, j] += factor * right[k, j]
