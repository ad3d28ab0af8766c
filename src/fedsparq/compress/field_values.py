"""Two more ways to write values, for methods of the field: steps by bucket, and signs of a rotated layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress import field_kernels

ROTATED_TOGETHER = 1 << 15
"""The longest chunk that is rotated: it fits a CPU's cache."""

_SHORTEST = 64


@dataclass(frozen=True)
class Buckets:
    """Whole multiples of the step of a bucket, which is so many coordinates of the layer in a row."""

    bucket: int
    steps: NDArray[np.float32]
    owners: NDArray[np.uint32]
    """Which bucket each value lies in; the places of the values tell."""
    levels: NDArray[np.int16]

    def __len__(self) -> int:
        return self.levels.size

    def decoded(self) -> NDArray[np.float32]:
        return self.levels.astype(np.float32) * self.steps[self.owners]


@dataclass(frozen=True)
class Rotated:
    """Every coordinate of a layer, as the signs of the layer in randomly rotated chunks with a scale each."""

    size: int
    seed: int
    scales: NDArray[np.float32]
    negative: NDArray[np.uint8]
    """The signs as bits, from the lowest bit of each byte up; each chunk starts a byte."""

    def __len__(self) -> int:
        return self.size

    def decoded(self) -> NDArray[np.float32]:
        out, at = np.empty(self.size, np.float32), 0
        for number, (start, size, padded) in enumerate(rotation_chunks(self.size)):
            bits = np.unpackbits(self.negative[at : at + padded // 8], bitorder="little")
            x = np.where(bits, -self.scales[number], self.scales[number])
            field_kernels.rotate_back(x, np.uint64(self.seed), number)
            out[start : start + size] = x[:size]
            at += padded // 8
        return out


def rotation_chunks(size: int) -> list[tuple[int, int, int]]:
    """(start, size, size with zeros behind) of the chunks of a layer, whose sizes with zeros are powers of two.

    As long ones as possible come first; what is left below 64 coordinates is filled up with zeros, to 8 at least.
    """
    chunks, start = [], 0
    while start < size:
        left = size - start
        taken = min(ROTATED_TOGETHER, 1 << (left.bit_length() - 1)) if left >= _SHORTEST else left
        padded = taken if left >= _SHORTEST else max(8, 1 << (left - 1).bit_length())
        chunks.append((start, taken, padded))
        start += taken
    return chunks


def rotated_bytes(size: int) -> int:
    """How many bytes the signs of `size` coordinates take."""
    return sum(padded for _, _, padded in rotation_chunks(size)) // 8
