"""Local training: SGD on one flat vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim.sgd import sgd

from fedsparq.errors import DataError, FedSparQError
from fedsparq.protocols import GradientHook
from fedsparq.tasks import augment
from fedsparq.tasks.batches import batches
from fedsparq.tasks.dataset import Dataset
from fedsparq.tasks.devices import lowered, own_randomness
from fedsparq.tasks.flat_model import FlatModel
from fedsparq.tasks.options import Training

PLAIN: dict[str, Any] = {"foreach": False, "dampening": 0, "nesterov": False, "maximize": False}
"""Torch's SGD on one tensor, without its variants."""


class DivergenceError(FedSparQError):
    """Local training left the finite numbers."""


def train(
    model: FlatModel,
    data: Dataset,
    indices: NDArray[np.int64],
    options: Training,
    seed: int | Sequence[int],
    hook: GradientHook | None = None,
    *,
    precision: str = "float32",
    crop_flip: bool = False,
) -> tuple[int, float]:
    """SGD from where the model stands, in place, over the given examples of the train split.

    Returns how many steps were made, and their mean loss, without what client rules add.
    Each epoch is a new shuffle; its last batch may be smaller. Momentum starts at zero. Everything random, dropout
    too, is a function of ``seed``. ``hook`` changes the gradient of each step before it is clipped.
    """
    batch_size = options.batch_size
    used = _used_examples(len(indices), batch_size, model.has_batch_norm)
    steps = options.epochs * -(-used // batch_size) if options.steps is None else options.steps
    start = model.vector.clone() if hook else None
    velocity: list[Tensor | None] = [None]
    total, remedy = 0.0, f"lower lr (now {options.lr}) or set clip_norm"
    model.module.train()
    rng, moving = (np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key)) for key in ((), (1,)))
    with own_randomness(model.device):
        torch.manual_seed(int(rng.integers(2**63)))
        done = 0
        while done < steps:
            order = indices[rng.permutation(len(indices))][:used][: (steps - done) * batch_size]
            moves = augment.draw(len(order), moving) if crop_flip else None
            for inputs, targets in batches(data, data.train, order, batch_size, device=model.device, moves=moves):
                model.gradient.zero_()
                with lowered(model.device, precision):
                    outputs = model.module(inputs)
                loss = objective(outputs, targets)
                loss.backward()  # type: ignore[no-untyped-call]
                value = loss.item()
                if not math.isfinite(value):
                    raise DivergenceError(f"training diverged: the loss is {value} after {done} steps; {remedy}")
                if hook:
                    hook(model.gradient, model.vector, start)
                _step(model, options, velocity)
                total += value
                done += 1
    if not bool(torch.isfinite(model.vector).all()):
        raise DivergenceError(f"training diverged in its last step; {remedy}")
    return steps, total / steps


def objective(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy of classes, at each place that counts; the squared error of numbers."""
    if targets.is_floating_point():
        return mse_loss(outputs.float(), targets, reduction=reduction)
    if targets.dim() > 1:
        outputs, targets = outputs.flatten(0, -2), targets.flatten()
    return cross_entropy(outputs.float(), targets, reduction=reduction)


def _step(model: FlatModel, options: Training, velocity: list[Tensor | None]) -> None:
    """One step on the whole model: clipping, then torch's SGD."""
    lr, momentum, decay = options.lr, options.momentum, options.weight_decay
    if options.clip_norm is not None:
        norm = float(torch.linalg.vector_norm(model.gradient))
        if norm > options.clip_norm:
            model.gradient.mul_(options.clip_norm / norm)
    sgd([model.vector], [model.gradient], velocity, lr=lr, momentum=momentum, weight_decay=decay, **PLAIN)


def _used_examples(examples: int, batch_size: int, has_batch_norm: bool) -> int:
    """How many examples an epoch uses: all, but batch normalization goes without a batch of one: it has no variance."""
    if examples == 0:
        raise DataError("cannot train on 0 examples; give each client at least one")
    alone = (examples if batch_size == 1 else int(examples % batch_size == 1)) if has_batch_norm else 0
    if alone == examples:
        raise DataError(
            f"a model with batch normalization cannot train on {examples} example(s) in batches of {batch_size}: "
            "it needs at least 2 examples in a batch"
        )
    return examples - alone
