"""A layer as a count sketch (Charikar 2002): sums of randomly signed coordinates, which can be added up as they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsparq.compiled import jit
from fedsparq.errors import WireError
from fedsparq.layout import Tensor, Vector
from fedsparq.payload.kernels import random_bits
from fedsparq.payload.streams import Reader, Writer
from fedsparq.payload.values import LARGEST_FLOAT32, WholeLayer, register_builtin

MAX_ROWS = 15
_MIN_SKETCHED_SIZE = 1024
"""Layers of up to so many coordinates are not worth a sketch."""
Table = NDArray[np.float32]
"""A row for each hash function."""


@register_builtin
@dataclass(frozen=True)
class Sketch(WholeLayer):
    """Every coordinate of a layer, as the median over the table's rows of the sums that it went into.

    Coordinate i is added to one place of each row with a sign of its own; both follow from the seed, the row and i.
    The number of rows is odd.
    """

    size: int
    seed: int
    table: Table
    code: ClassVar[int] = 22

    def __len__(self) -> int:
        return self.size

    @cached_property
    def _decoded(self) -> Vector:
        out = np.empty(self.size, np.float32)
        if self.size:
            estimate_coordinates(self.table, np.uint64(self.seed), out)
        return out

    def scaled(self, factor: np.float32) -> Sketch:
        return replace(self, table=factor * self.table)

    def raw_bytes(self) -> int:
        return self.table.nbytes

    def write_header(self, writer: Writer) -> None:
        writer.byte(self.code)
        writer.raw(self.seed.to_bytes(8, "little"))
        for side in self.table.shape:
            writer.varint(side)
        writer.raw(self.table.astype("<f4", copy=False))

    @classmethod
    def read_header(cls, reader: Reader, code: int, tensor: Tensor) -> Sketch:
        seed, rows, columns = reader.number(8), reader.varint(MAX_ROWS), reader.varint(max(tensor.size, 1))
        if rows % 2 == 0 or not 0 < rows * columns <= tensor.size:
            raise WireError(
                f"layer {tensor.name!r}: a sketch of {rows} x {columns} for {tensor.size:,} coordinates; its rows are "
                "odd, and it has no more numbers than the layer"
            )
        table = reader.array("<f4", rows * columns).reshape(rows, columns)
        if not np.isfinite(table).all():
            raise WireError(f"layer {tensor.name!r}: a sum of its sketch is infinite or not a number")
        return cls(tensor.size, seed, table)


def sketch_columns(size: int, share: float, rows: int) -> int:
    """Return how many columns a table has, to hold `share` as many numbers as the layer; 0 if there is no table."""
    return max(1, int(share * size / rows)) if size > _MIN_SKETCHED_SIZE else 0


def sketch(layer: Vector, seed: int, rows: int, columns: int) -> Table:
    """Return the table of a layer."""
    sums = np.zeros((rows, columns))
    add_to_table(layer, np.uint64(seed), sums)
    return np.clip(sums, -LARGEST_FLOAT32, LARGEST_FLOAT32).astype(np.float32)


@jit
def add_to_table(layer: Any, seed: Any, table: Any) -> None:
    """Compute table[row, place] += sign * coordinate: place and sign are the upper 32 bits and the lowest of a hash."""
    for row in range(table.shape[0]):
        own = random_bits(seed, row)
        for i in range(layer.size):
            bits = random_bits(own, i)
            place = ((bits >> np.uint64(32)) * np.uint64(table.shape[1])) >> np.uint64(32)
            if bits & np.uint64(1):
                table[row, place] -= layer[i]
            else:
                table[row, place] += layer[i]


@jit
def estimate_coordinates(table: Any, seed: Any, out: Any) -> None:
    """Return for each coordinate the median over rows of sign * table[row, place]."""
    rows = table.shape[0]
    seeds = np.empty(rows, np.uint64)
    for row in range(rows):
        seeds[row] = random_bits(seed, row)
    found = np.empty(rows, np.float32)
    for i in range(out.size):
        for row in range(rows):
            bits = random_bits(seeds[row], i)
            place = ((bits >> np.uint64(32)) * np.uint64(table.shape[1])) >> np.uint64(32)
            value = -table[row, place] if bits & np.uint64(1) else table[row, place]
            at = row
            while at > 0 and found[at - 1] > value:
                found[at] = found[at - 1]
                at -= 1
            found[at] = value
        out[i] = found[rows // 2]
