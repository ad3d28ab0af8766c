"""Train and evaluate a flat model: batches, SGD, gradients with record-level noise, metrics of the test split."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim.sgd import sgd

from fedsparq.errors import DataError, FedSparQError, OptionError
from fedsparq.lab.settings import PerExample, Training
from fedsparq.lab.tasks.dataset import IGNORED, Dataset, Split, is_image
from fedsparq.lab.tasks.devices import seeded
from fedsparq.layout import Buffers, Layout, Vector
from fedsparq.privacy.noise import Noise, system_noise
from fedsparq.protocols import GradientHook

_CPU = torch.device("cpu")


class FlatModel:
    """A module whose parameters are views into one vector, and whose gradients are views into another.

    A client's update is then one subtraction, and an optimizer step a few operations whatever the number of layers.
    The module is taken over: its parameters must not be replaced afterwards, only changed in place.
    """

    def __init__(self, module: nn.Module, device: torch.device = _CPU) -> None:
        self.module, self.device = module.to(device), device
        self.layout = Layout.of(module)
        _check_float32(self.layout)
        self._has_buffers = bool(self.layout.buffers or self.layout.counters)
        state = module.state_dict(keep_vars=True)
        if len({id(value) for value in state.values()}) < len(state):
            raise OptionError("the model shares one tensor under two names, which a flat vector cannot hold")
        self.vector = torch.empty(self.layout.size, device=device)
        self.gradient = torch.zeros(self.layout.size, device=device)
        for tensor in self.layout.parameters:
            parameter = state[tensor.name]
            view = self.vector[tensor.span].view(tensor.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = self.gradient[tensor.span].view(tensor.shape)
        self.has_batch_norm = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())

    def load(self, vector: Vector, buffers: Buffers | None = None) -> None:
        """Take over parameters, and statistics and counters where the model has any; all are copied."""
        arrays = self.layout.unflatten(vector, buffers)
        self.vector.copy_(_tensor(vector))
        if self._has_buffers:
            for name, tensor in self.module.state_dict().items():
                tensor.copy_(_tensor(arrays[name]))

    def state(self) -> tuple[Vector, Buffers | None]:
        """A copy of the parameters, and of the statistics and counters where the model has any."""
        if not self._has_buffers:
            return self.vector.numpy(force=True).copy(), None
        return self.layout.flatten({name: tensor.cpu().numpy() for name, tensor in self.module.state_dict().items()})


def _tensor(array: NDArray[np.generic]) -> Tensor:
    """A tensor to copy from; torch warns about arrays it could not write to, so those are copied first."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _check_float32(layout: Layout) -> None:
    for tensor in (*layout.parameters, *layout.buffers):
        if tensor.dtype != "float32":
            raise OptionError(f"tensor {tensor.name!r} is {tensor.dtype}; a trained model must be float32")


SGD_DEFAULTS: dict[str, Any] = {"foreach": False, "dampening": 0, "nesterov": False, "maximize": False}
"""Torch's SGD on one tensor, without its variants."""
_CHUNK_VALUES = 1 << 20
"""About how many values are gathered and normalized at once: few calls, yet small enough for a CPU cache."""
_TEST_BATCH = 250
"""Examples per forward pass: fixed, because sums of another shape round differently."""
_PADDING = 4
"""Pixels around an image that a random crop may move into it."""


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
    crop_flip: bool = False,
) -> tuple[int, float]:
    """Train in place by SGD on the given examples of the train split.

    Returns the number of steps, and their mean loss, without what client rules add.
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
    rng, crop_rng = (np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key)) for key in ((), (1,)))
    with seeded(model.device, int(rng.integers(2**63))):
        done = 0
        while done < steps:
            order = indices[rng.permutation(len(indices))][:used][: (steps - done) * batch_size]
            crops = draw_crops(len(order), crop_rng) if crop_flip else None
            for inputs, targets in batches(data, data.train, order, batch_size, device=model.device, crops=crops):
                model.gradient.zero_()
                loss = loss_function(model.module(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                value = loss.item()
                if not math.isfinite(value):
                    raise DivergenceError(f"training diverged: the loss is {value} after {done} steps; {remedy}")
                if hook:
                    hook(model.gradient, model.vector, start)
                _step(model, options, velocity)
                total += value
                done += 1
    # a sum is finite only if all is, and takes a tenth of the time
    if not (math.isfinite(float(model.vector.sum())) or bool(torch.isfinite(model.vector).all())):
        raise DivergenceError(f"training diverged in its last step; {remedy}")
    return steps, total / steps


def noisy_gradient(
    model: FlatModel,
    data: Dataset,
    indices: NDArray[np.int64],
    options: PerExample,
    divisor: float,
    draw: Noise = system_noise,
) -> Vector:
    """Return the sum of these examples' clipped gradients with noise, over a constant.

    One example moves the sum by at most `clip`, and the divisor is a constant, so with noise of standard deviation
    `noise` x `clip` on each coordinate a round is one Gaussian mechanism. All examples are in every gradient: no
    amplification by sampling is claimed. `draw` is for tests alone: noise that can be drawn again is no noise.
    """
    total = torch.zeros_like(model.gradient, dtype=torch.float64)
    model.module.train()
    for inputs, targets in batches(data, data.train, indices, 1, device=model.device):
        model.gradient.zero_()
        loss_function(model.module(inputs), targets).backward()  # type: ignore[no-untyped-call]
        gradient = model.gradient.double()
        norm = float(torch.linalg.vector_norm(gradient))
        if not math.isfinite(norm):
            raise DivergenceError("training diverged: an example's gradient is not finite; lower lr")
        total.add_(gradient, alpha=min(1.0, options.clip / norm) if norm else 1.0)
    noisy = total.cpu().numpy() + options.noise * options.clip * draw(total.numel())
    return np.asarray(noisy / divisor, np.float32)


def evaluate(model: FlatModel, data: Dataset) -> dict[str, float]:
    """Evaluate on the test split. Classes: accuracy in percent and mean cross-entropy, of a text also as bits per
    character. Numbers: the mean squared error in their own units, and r2, the explained share of their variance."""
    if not len(data.test[0]):
        raise DataError("cannot evaluate on an empty split")
    return _evaluate_classes(model, data) if data.classification else _evaluate_numbers(model, data)


def loss_function(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of classes, at each position that counts; the squared error of numbers."""
    if targets.is_floating_point():
        return mse_loss(outputs.float(), targets, reduction=reduction)
    if targets.dim() > 1:
        outputs, targets = outputs.flatten(0, -2), targets.flatten()
    return cross_entropy(outputs.float(), targets, reduction=reduction)


def batches(
    data: Dataset,
    split: Split,
    order: NDArray[np.int64],
    batch_size: int,
    *,
    device: torch.device | None = None,
    crops: NDArray[np.int64] | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of a split in the given order, gathered many at a time: pixels normalized, cropped by `crops`."""
    x, y = split
    at_once = batch_size * max(1, _CHUNK_VALUES // (batch_size * math.prod(x.shape[1:])))
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        gathered = x[chosen]
        if crops is not None:
            gathered = crop_and_flip(gathered, crops[start : start + at_once])
        inputs, targets = torch.from_numpy(gathered), torch.from_numpy(y[chosen])
        if device is not None:
            inputs, targets = inputs.to(device), targets.to(device)
        if is_image(x):
            scale = torch.tensor([1 / (255 * s) for s in data.std], device=inputs.device).view(-1, 1, 1)
            shift = torch.tensor([-m / s for m, s in zip(data.mean, data.std, strict=True)], device=inputs.device)
            inputs = inputs.float().mul_(scale).add_(shift.view(-1, 1, 1))
        yield from zip(torch.split(inputs, batch_size), torch.split(targets, batch_size), strict=True)


def draw_crops(examples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw for each example how far down and to the right its crop starts, and whether it is mirrored."""
    return rng.integers(0, [2 * _PADDING + 1, 2 * _PADDING + 1, 2], (examples, 3))


def crop_and_flip(images: NDArray[Any], crops: NDArray[np.int64]) -> NDArray[Any]:
    """Crop images [N, C, H, W] out of a black frame of 4 pixels, and mirror some left to right."""
    _, _, height, width = images.shape
    frame = [(0, 0), (0, 0), (_PADDING, _PADDING), (_PADDING, _PADDING)]
    rows = crops[:, 0, None] + np.arange(height)
    columns = crops[:, 1, None] + np.where(crops[:, 2, None] == 1, np.arange(width)[::-1], np.arange(width))
    index = np.arange(len(images))[:, None, None]
    moved: NDArray[Any] = np.pad(images, frame).transpose(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]]
    return np.ascontiguousarray(moved.transpose(0, 3, 1, 2))


def _step(model: FlatModel, options: Training, velocity: list[Tensor | None]) -> None:
    """Make one step on the full model: clipping, then torch's SGD."""
    lr, momentum, decay = options.lr, options.momentum, options.weight_decay
    if options.clip_norm is not None:
        norm = float(torch.linalg.vector_norm(model.gradient))
        if norm > options.clip_norm:
            model.gradient.mul_(options.clip_norm / norm)
    sgd([model.vector], [model.gradient], velocity, lr=lr, momentum=momentum, weight_decay=decay, **SGD_DEFAULTS)


def _used_examples(examples: int, batch_size: int, has_batch_norm: bool) -> int:
    """Return the number of examples in an epoch: all, but batch normalization leaves out a batch of one."""
    if examples == 0:
        raise DataError("cannot train on 0 examples; give each client at least one")
    alone = (examples if batch_size == 1 else int(examples % batch_size == 1)) if has_batch_norm else 0
    if alone == examples:
        raise DataError(
            f"a model with batch normalization cannot train on {examples} example(s) in batches of {batch_size}: "
            "it needs at least 2 examples in a batch"
        )
    return examples - alone


def _evaluate_classes(model: FlatModel, data: Dataset) -> dict[str, float]:
    correct, count, loss = 0, 0, 0.0
    for outputs, targets in _predictions(model, data):
        loss += loss_function(outputs, targets, "sum").item()
        correct += int((outputs.argmax(-1) == targets).sum())
        count += int((targets != IGNORED).sum())
    metrics = {"accuracy": 100.0 * correct / count, "loss": loss / count}
    return metrics | ({"bits_per_character": loss / count / math.log(2)} if data.text else {})


def _evaluate_numbers(model: FlatModel, data: Dataset) -> dict[str, float]:
    targets = data.test[1].astype(np.float64)
    predicted = torch.cat([outputs.float().cpu() for outputs, _ in _predictions(model, data)])
    error = np.square(predicted.double().numpy() - targets).mean(0)
    spread = targets.var(0).sum()
    units = np.array(data.target_std or 1.0) ** 2
    return {"loss": float((error * units).mean()), "r2": float(1 - error.sum() / spread) if spread else math.nan}


def _predictions(model: FlatModel, data: Dataset) -> Iterator[tuple[Tensor, Tensor]]:
    model.module.eval()
    everything = np.arange(len(data.test[0]))
    with torch.no_grad():
        for inputs, targets in batches(data, data.test, everything, _TEST_BATCH, device=model.device):
            yield model.module(inputs), targets
