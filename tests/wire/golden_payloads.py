"""One small payload for each way to write indices and values."""

from __future__ import annotations

import numpy as np

from fedsparq import Buffers, Layout, Payload
from fedsparq.payload import (
    ClassLevels,
    Codebook,
    CosineBlocks,
    Dense,
    Float16Values,
    Float32Values,
    LowRank,
    Seeded,
    Sketch,
    Sparse,
    UniformLevels,
)
from fedsparq.payload.cosine_blocks import Blocks

TWO = {"w": (2, 3), "b": (2,)}
BATCH_NORM = {
    "w": (2,),
    "bn.running_mean": np.zeros(2, np.float32),
    "bn.num_batches_tracked": np.zeros((), np.int64),
}


def _sparse(*indices: int) -> Sparse:
    return Sparse(np.array(indices, np.uint32))


def _float32(*values: float) -> Float32Values:
    return Float32Values(np.array(values, np.float32))


def _float16(*values: float) -> Float16Values:
    return Float16Values(np.array(values, np.float16).view(np.uint16))


def _levels(step: float, *levels: int) -> UniformLevels:
    return UniformLevels(np.float32(step), np.array(levels, np.int16))


def _column(*values: float) -> np.ndarray:
    return np.array(values, np.float32).reshape(-1, 1)


PAYLOADS = {
    "nothing, float16": Payload(Layout.of(TWO), _sparse(), (_float16(), _float16())),
    "dense, float32": Payload(Layout.of(TWO), Dense(8), (_float32(1, -0.0, 3, 1e-45, 5, 6), _float32(7, 8))),
    "bitmap, float16": Payload(
        Layout.of(TWO), _sparse(1, 4, 5, 6, 7), (_float16(1.5, -0.25, 6e-8), _float16(1, -65504))
    ),
    "bitmap in a frame, float16 in frames": Payload(
        Layout.of({"w": (4000,)}), _sparse(*range(0, 4000, 2)), (_float16(*[0.5, 0.5, -1.0, 0.5] * 500),)
    ),
    "gaps, float16": Payload(
        Layout.of({"w": (600_000,)}), _sparse(*range(10), 599_999), (_float16(*[1.25] * 10, 1 / 3),)
    ),
    "gaps in a frame, float16 in frames": Payload(
        Layout.of({"w": (600_000,)}), _sparse(*range(29), 599_999), (_float16(*[1.25] * 29, 1 / 3),)
    ),
    "rice, float32": Payload(Layout.of({"w": (1000,)}), _sparse(0, 99, 250, 251, 999), (_float32(1, 2, 3, 4, 5),)),
    "seeded, float32": Payload(Layout.of(TWO), Seeded(8, 3, 2**63 + 5), (_float32(1, 2), _float32(3))),
    "uniform levels": Payload(Layout.of(TWO), _sparse(0, 2, 3, 7), (_levels(0.125, 3, -1, 5), _levels(2, -1))),
    "uniform levels of two bytes": Payload(
        Layout.of(TWO), Dense(8), (_levels(1e-3, 1, -2, 300, -301, 256, 257), _levels(1, 1, 1))
    ),
    "uniform levels in a frame": Payload(
        Layout.of({"w": (300,)}), Dense(300), (_levels(0.5, *[1, 1, 1, 1, -9, 1] * 50),)
    ),
    "codebook": Payload(
        Layout.of(TWO),
        _sparse(0, 1, 5, 6),
        (
            Codebook(np.array([0.5, 2], np.float32), np.array([1, -2, 2], np.int16)),
            Codebook(np.array([3], np.float32), np.array([-1], np.int16)),
        ),
    ),
    "class levels": Payload(
        Layout.of(TWO),
        _sparse(0, 1, 5, 6),
        (
            ClassLevels(np.array([0.5, 2], np.float32), (2, 3), np.array([1, -2, 5], np.int16)),
            ClassLevels(np.array([3], np.float32), (1,), np.array([-1], np.int16)),
        ),
    ),
    "low rank": Payload(
        Layout.of(TWO),
        Dense(8),
        (LowRank(_column(1, -0.5), _column(2, 0, 3)), _float32(0.25, 4)),
    ),
    "sketch": Payload(
        Layout.of(TWO),
        Dense(8),
        (Sketch(6, 2**40 + 3, np.array([[1, 2], [3, 4], [5, 7]], np.float32)), _float32(1, 2)),
    ),
    "cosine blocks": Payload(
        Layout.of(TWO),
        Dense(8),
        (
            CosineBlocks(Blocks(2, 3, 2, 3), np.array([[0, 4]], np.uint16), np.array([[6, -1.5]], np.float32)),
            CosineBlocks(Blocks(1, 2, 1, 2), np.array([[1]], np.uint16), np.array([[1]], np.float32)),
        ),
    ),
    "buffers": Payload(
        Layout.of(BATCH_NORM),
        Dense(2),
        (_float16(1, 2),),
        Buffers(np.array([0.5, -1], np.float32), np.array([7], np.int64)),
    ),
}
