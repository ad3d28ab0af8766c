"""One layer of every kind of value that FSQ1 has, as a payload."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsparq import Layout, Payload
from fedsparq.payload import (
    BucketLevels,
    ClassLevels,
    Codebook,
    CosineBlocks,
    Dense,
    Float16Values,
    Float32Values,
    LowRank,
    RotatedSigns,
    Sketch,
    Sparse,
    UniformLevels,
    Values,
)
from fedsparq.payload.cosine_blocks import Blocks

ROWS, COLUMNS, RANK = 48, 64, 2
SIZE = ROWS * COLUMNS
LAYOUT = Layout.of({"w": (ROWS, COLUMNS)})
_RNG = np.random.default_rng(5)
_SENT = np.flatnonzero(_RNG.random(SIZE) < 0.1).astype(np.uint32)


def _normal(*shape: int) -> NDArray[np.float32]:
    return _RNG.normal(scale=0.1, size=shape).astype(np.float32)


def _levels(top: int) -> NDArray[np.int16]:
    levels = np.minimum(_RNG.geometric(0.4, _SENT.size), top) * _RNG.choice([-1, 1], _SENT.size)
    return levels.astype(np.int16)


def _short(*numbers: float) -> NDArray[np.float32]:
    """Numbers whose lower two bytes are zero: with only such scales a message is shorter."""
    array: NDArray[np.float32] = (np.array(numbers, np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    return array


_BLOCKS = Blocks.of(LAYOUT.parameters[0])

RAW_BYTES: dict[str, tuple[Values, int]] = {
    "float32": (Float32Values(_normal(_SENT.size)), 4 * _SENT.size),
    "float16": (Float16Values(_normal(_SENT.size).astype(np.float16).view(np.uint16)), 2 * _SENT.size),
    "uniform levels": (UniformLevels(np.float32(0.1), _levels(4)), (3 * _SENT.size + 7) // 8),
    "uniform levels, short": (UniformLevels(_short(0.1)[0], _levels(4)), (3 * _SENT.size + 7) // 8),
    "bucket levels": (
        BucketLevels(500, np.abs(_normal(-(-SIZE // 500))), _SENT // np.uint32(500), _levels(8)),
        (4 * _SENT.size + 7) // 8,
    ),
    "class levels": (ClassLevels(np.float32([0.1, 0.3]), (3, 5), _levels(8)), (4 * _SENT.size + 7) // 8),
    "codebook": (Codebook(np.float32([0.1, 0.3]), _levels(2)), (2 * _SENT.size + 7) // 8),
    "codebook, short": (Codebook(_short(0.1, 0.3), _levels(2)), (2 * _SENT.size + 7) // 8),
    "rotated signs": (
        RotatedSigns(SIZE, 7, np.float32([0.1, 0.2]), _RNG.integers(0, 256, SIZE // 8, np.uint8)),
        SIZE // 8 + 2 * 4,
    ),
    "low rank": (LowRank(_normal(ROWS, RANK), _normal(COLUMNS, RANK)), 4 * RANK * (ROWS + COLUMNS)),
    "sketch": (Sketch(SIZE, 7, _normal(3, 50)), 4 * 3 * 50),
    "cosine blocks": (
        CosineBlocks(
            _BLOCKS,
            np.sort(np.argsort(_RNG.random((_BLOCKS.count, _BLOCKS.size)))[:, :9]).astype(np.uint16),
            _normal(_BLOCKS.count, 9),
        ),
        (4 + 2) * 9 * _BLOCKS.count,
    ),
}
"""Each kind, and its bytes as papers count them: before any entropy coding, without indices that are listed."""


def payload_of(name: str) -> Payload:
    values = RAW_BYTES[name][0]
    return Payload(LAYOUT, Dense(SIZE) if len(values) == SIZE else Sparse(_SENT), (values,))
