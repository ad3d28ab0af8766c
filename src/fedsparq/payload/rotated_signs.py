"""The signs of a randomly rotated layer, and the randomized Walsh-Hadamard rotation, compiled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsparq.compiled import jit
from fedsparq.layout import Tensor, Vector
from fedsparq.payload.kernels import random_bits
from fedsparq.payload.levels import read_scale, write_scale
from fedsparq.payload.streams import Reader, Writer
from fedsparq.payload.values import CachedValues, LazyIndices, register_builtin

MAX_BLOCK = 1 << 15
"""The most coordinates that are rotated together: they fit a CPU's cache."""

_MIN_BLOCK = 64


@register_builtin
@dataclass(frozen=True)
class RotatedSigns(CachedValues):
    """Every coordinate of a layer, as the signs of the layer in randomly rotated blocks with a scale each."""

    size: int
    seed: int
    scales: Vector
    negative: NDArray[np.uint8]
    """The signs as bits, from the lowest bit of each byte up; each block starts a byte."""
    code: ClassVar[int] = 10
    needs_every_coordinate: ClassVar[bool] = True

    def __len__(self) -> int:
        return self.size

    @cached_property
    def _decoded(self) -> Vector:
        out, at = np.empty(self.size, np.float32), 0
        for number, (start, size, padded) in enumerate(rotation_blocks(self.size)):
            bits = np.unpackbits(self.negative[at : at + padded // 8], bitorder="little")
            x = np.where(bits, -self.scales[number], self.scales[number])
            rotate_back(x, np.uint64(self.seed), number)
            out[start : start + size] = x[:size]
            at += padded // 8
        return out

    def scaled(self, factor: np.float32) -> RotatedSigns:
        return replace(self, scales=factor * self.scales)

    def raw_bytes(self) -> int:
        return self.scales.nbytes + self.negative.nbytes

    def write_header(self, writer: Writer) -> None:
        writer.byte(self.code)
        writer.raw(self.seed.to_bytes(8, "little"))
        write_scale(writer, self.scales)

    def write(self, writer: Writer, part: slice) -> None:
        start = int(part.start) // 8
        writer.raw(self.negative[start : start + rotated_bytes(int(part.stop) - int(part.start))])

    @classmethod
    def read_header(cls, reader: Reader, code: int, tensor: Tensor) -> tuple[int, Vector]:
        seed = reader.number(8)
        return seed, read_scale(reader, len(rotation_blocks(tensor.size)), MAX_BLOCK, tensor)

    @classmethod
    def read(cls, reader: Reader, header: tuple[int, Vector], count: int, tensor: Tensor) -> NDArray[Any]:
        return reader.take(rotated_bytes(count))

    @classmethod
    def join(cls, header: tuple[int, Vector], data: NDArray[Any], indices: LazyIndices, tensor: Tensor) -> RotatedSigns:
        return cls(tensor.size, *header, data.astype(np.uint8, copy=False))


def rotation_blocks(size: int) -> list[tuple[int, int, int]]:
    """Return (start, size, size with zeros after it) of a layer's blocks, whose sizes with zeros are powers of two.

    As long ones as possible come first; what is left below 64 coordinates is filled up with zeros, to 8 at least.
    """
    blocks, start = [], 0
    while start < size:
        left = size - start
        taken = min(MAX_BLOCK, 1 << (left.bit_length() - 1)) if left >= _MIN_BLOCK else left
        padded = taken if left >= _MIN_BLOCK else max(8, 1 << (left - 1).bit_length())
        blocks.append((start, taken, padded))
        start += taken
    return blocks


def rotated_bytes(size: int) -> int:
    """Return how many bytes the signs of `size` coordinates take."""
    return sum(padded for _, _, padded in rotation_blocks(size)) // 8


@jit
def flip_signs(x: Any, seed: Any) -> None:
    """Multiply each by a random sign drawn from the seed: bit i % 64 of word i // 64."""
    word = np.uint64(0)
    bits = x.view(np.uint32)
    for i in range(x.size):
        if i & 63 == 0:
            word = random_bits(seed, i >> 6)
        bits[i] ^= np.uint32((word >> np.uint64(i & 63)) & np.uint64(1)) << np.uint32(31)


@jit
def hadamard(x: Any) -> None:
    """Compute the Walsh-Hadamard transform in place, not normalized; the size is a power of two."""
    half = 1
    while half < x.size:
        for start in range(0, x.size, 2 * half):
            for i in range(start, start + half):
                a, b = x[i], x[i + half]
                x[i] = a + b
                x[i + half] = a - b
        half *= 2


@jit
def rotate(x: Any, seed: Any, number: int) -> None:
    """Rotate block `number` at random: random signs, then Walsh-Hadamard, normalized."""
    flip_signs(x, random_bits(seed, number))
    hadamard(x)
    x *= np.float32(1.0 / np.sqrt(x.size))


@jit
def rotate_back(x: Any, seed: Any, number: int) -> None:
    """Undo `rotate`."""
    hadamard(x)
    flip_signs(x, random_bits(seed, number))
    x *= np.float32(1.0 / np.sqrt(x.size))
