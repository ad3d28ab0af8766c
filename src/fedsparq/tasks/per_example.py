"""A client's gradient with noise on it, so that it says little of any one example: record-level, local privacy.

One example moves the sum of all examples' clipped gradients by at most `clip`, and the divisor is a constant, so with
noise of standard deviation `noise` x `clip` on each coordinate a round is one Gaussian mechanism, whatever is done with
its result later. All examples are in every gradient: no amplification by sampling is claimed.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from fedsparq.layout import Vector
from fedsparq.privacy.noise import Noise, system_noise
from fedsparq.tasks.batches import batches
from fedsparq.tasks.dataset import Dataset
from fedsparq.tasks.flat_model import FlatModel
from fedsparq.tasks.options import PerExample
from fedsparq.tasks.training import DivergenceError, objective


def noisy_gradient(
    model: FlatModel,
    data: Dataset,
    indices: NDArray[np.int64],
    options: PerExample,
    divisor: float,
    draw: Noise = system_noise,
) -> Vector:
    """The sum of these examples' clipped gradients with noise, over a constant.

    `draw` is for tests alone: noise that can be drawn again is no noise.
    """
    total = torch.zeros_like(model.gradient, dtype=torch.float64)
    model.module.train()
    for inputs, targets in batches(data, data.train, indices, 1, device=model.device):
        model.gradient.zero_()
        objective(model.module(inputs), targets).backward()  # type: ignore[no-untyped-call]
        gradient = model.gradient.double()
        norm = float(torch.linalg.vector_norm(gradient))
        if not math.isfinite(norm):
            raise DivergenceError("training diverged: an example's gradient is not finite; lower lr")
        total.add_(gradient, alpha=min(1.0, options.clip / norm) if norm else 1.0)
    noisy = total.cpu().numpy() + options.noise * options.clip * draw(total.numel())
    return np.asarray(noisy / divisor, np.float32)
