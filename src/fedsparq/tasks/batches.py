"""Examples as the batches of tensors that a model takes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsparq.tasks import augment
from fedsparq.tasks.dataset import Dataset, Split, is_image

_CHUNK_VALUES = 1 << 20
"""About how many values are gathered and normalised at once: few calls, yet small enough for a CPU cache."""


def batches(
    data: Dataset,
    split: Split,
    order: NDArray[np.int64],
    batch_size: int,
    *,
    device: torch.device | None = None,
    moves: NDArray[np.int64] | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of a split in the given order, gathered many at a time: pixels normalised, moved where `moves` says."""
    x, y = split
    at_once = batch_size * max(1, _CHUNK_VALUES // (batch_size * math.prod(x.shape[1:])))
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        taken = x[chosen]
        if moves is not None:
            taken = augment.crop_flip(taken, moves[start : start + at_once])
        inputs, targets = torch.from_numpy(taken), torch.from_numpy(y[chosen])
        if device is not None:
            inputs, targets = inputs.to(device), targets.to(device)
        if is_image(x):
            inputs = _normalised(inputs, data)
        yield from zip(torch.split(inputs, batch_size), torch.split(targets, batch_size), strict=True)


def _normalised(images: Tensor, data: Dataset) -> Tensor:
    scale = torch.tensor([1 / (255 * s) for s in data.std], device=images.device).view(-1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(data.mean, data.std, strict=True)], device=images.device)
    return images.float().mul_(scale).add_(shift.view(-1, 1, 1))
