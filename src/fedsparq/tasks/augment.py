"""Images moved and mirrored at random, as training on small images is wont to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

AUGMENTS = ("off", "crop-flip")
_PADDING = 4


def draw(examples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """For each example: how far down and to the right its crop starts, and whether it is mirrored."""
    return rng.integers(0, [2 * _PADDING + 1, 2 * _PADDING + 1, 2], (examples, 3))


def crop_flip(images: NDArray[Any], moves: NDArray[np.int64]) -> NDArray[Any]:
    """Images [N, C, H, W] cropped out of a black frame of 4 pixels, some mirrored left to right."""
    _, _, height, width = images.shape
    frame = [(0, 0), (0, 0), (_PADDING, _PADDING), (_PADDING, _PADDING)]
    rows = moves[:, 0, None] + np.arange(height)
    columns = moves[:, 1, None] + np.where(moves[:, 2, None] == 1, np.arange(width)[::-1], np.arange(width))
    index = np.arange(len(images))[:, None, None]
    moved: NDArray[Any] = np.pad(images, frame).transpose(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]]
    return np.ascontiguousarray(moved.transpose(0, 3, 1, 2))
