"""Encoded images as equal uint8 arrays, one after another, so that a large set never has to fit into memory."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedsparq.errors import DataError

_BATCH = 1000


def decode(splits: dict[str, Any], column: str, scratch: Path) -> dict[str, NDArray[np.uint8]]:
    """The images of each split as uint8[N, C, H, W], in files ``<split>_x.npy``: grey if all in train are, else RGB."""
    width, height = next(_pictures(splits["train"], column)).size
    grey = all(picture.mode in ("L", "1") for picture in _pictures(splits["train"], column))
    mode, channels = ("L", 1) if grey else ("RGB", 3)
    decoded = {}
    for role, rows in splits.items():
        images = np.lib.format.open_memmap(
            scratch / f"{role}_x.npy", "w+", np.uint8, (len(rows), channels, height, width)
        )
        for index, picture in enumerate(_pictures(rows, column)):
            if picture.size != (width, height):
                raise DataError(
                    f"the images differ in size ({width}x{height}, {picture.size[0]}x{picture.size[1]}); "
                    "only sets with one image size can be used"
                )
            pixels = np.asarray(picture if picture.mode == mode else picture.convert(mode))
            images[index] = pixels.reshape(height, width, channels).transpose(2, 0, 1)
        images.flush()
        decoded[role] = np.asarray(images)
    return decoded


def _pictures(rows: Any, column: str) -> Iterator[Image.Image]:
    for batch in rows.select_columns(column).iter(batch_size=_BATCH):
        for encoded in batch[column]:
            if encoded is None:
                raise DataError("the set has a row without an image")
            data = encoded["bytes"]
            yield Image.open(io.BytesIO(data) if data is not None else encoded["path"])
