"""Local training: SGD on one flat vector, and the evaluation of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import DataError, FedSparQError, MissingExtraError, OptionError
from fedsparq.layout import Exact, Layout

try:
    import torch
    from torch import Tensor, nn
    from torch.nn.functional import cross_entropy
except ImportError as error:
    raise MissingExtraError("training needs torch: pip install 'fedsparq[torch]'") from error

if TYPE_CHECKING:
    from fedsparq.learn.data import Split

_EVALUATION_CHUNK = 250
"""Images per forward pass in `evaluate`: fixed, because sums of another shape round differently."""

_CHUNK_VALUES = 1 << 20
"""About how many pixels are gathered and normalised at once: few calls, yet small enough for a CPU cache."""


class DivergenceError(FedSparQError):
    """Local training left the finite numbers."""


class FlatModel:
    """A module whose parameters are views into one vector, and whose gradients are views into another.

    A client's update is then one subtraction, and an optimizer step a few operations whatever the number of layers.
    The module is taken over: its parameters must not be replaced afterwards, only changed in place.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layout = Layout.of(module)
        _check_float32(self.layout)
        state = module.state_dict(keep_vars=True)
        if len({id(value) for value in state.values()}) < len(state):
            raise OptionError("the model shares one tensor under two names, which a flat vector cannot hold")
        self.vector = torch.empty(self.layout.size)
        self.gradient = torch.zeros(self.layout.size)
        for tensor in self.layout.parameters:
            parameter = state[tensor.name]
            view = self.vector[tensor.span].view(tensor.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = self.gradient[tensor.span].view(tensor.shape)
        self.has_batch_norm = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())

    def load(self, vector: NDArray[np.float32], exact: Exact | None = None) -> None:
        """Take over parameters and, where given, statistics and counters; all are copied."""
        if vector.shape != (self.layout.size,):
            raise OptionError(f"the model has {self.layout.size} parameters, got an array of shape {vector.shape}")
        self.vector.copy_(_tensor(vector))
        if exact is None:
            return
        expected = ((self.layout.buffer_size,), (self.layout.counter_size,))
        if (exact.buffers.shape, exact.counters.shape) != expected:
            raise OptionError(
                f"the model has {self.layout.buffer_size} statistics and {self.layout.counter_size} counters, "
                f"got arrays of shape {exact.buffers.shape} and {exact.counters.shape}"
            )
        state = self.module.state_dict()
        for tensors, values in ((self.layout.buffers, exact.buffers), (self.layout.counters, exact.counters)):
            for tensor in tensors:
                state[tensor.name].copy_(_tensor(values[tensor.span]).view(tensor.shape))

    def exact(self) -> Exact:
        """A copy of the statistics and counters, which travel beside the parameters."""
        buffers = np.empty(self.layout.buffer_size, np.float32)
        counters = np.empty(self.layout.counter_size, np.int64)
        state = self.module.state_dict()
        for tensor in self.layout.buffers:
            buffers[tensor.span] = state[tensor.name].numpy().reshape(-1)
        for tensor in self.layout.counters:
            counters[tensor.span] = state[tensor.name].numpy().reshape(-1)
        return Exact(buffers, counters)


@dataclass(frozen=True)
class Training:
    """How a client trains. ``steps``, where given, counts batches and overrides ``epochs``.

    ``clip_norm`` bounds the norm of the gradient of loss and proximal term; weight decay comes after it.
    """

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    epochs: int = 1
    steps: int | None = None
    batch_size: int = 32
    proximal_mu: float = 0.0
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        _require(self.lr > 0 and math.isfinite(self.lr), "lr", "a number above 0", self.lr)
        _require(0 <= self.momentum < 1, "momentum", "at least 0 and below 1", self.momentum)
        for name in ("weight_decay", "proximal_mu"):
            value = getattr(self, name)
            _require(value >= 0 and math.isfinite(value), name, "a number of at least 0", value)
        for name in ("epochs", "steps", "batch_size"):
            value = getattr(self, name)
            if value is not None:
                _require(isinstance(value, int) and value >= 1, name, "a whole number of at least 1", value)
        if self.clip_norm is not None:
            _require(self.clip_norm > 0, "clip_norm", "above 0, or left out", self.clip_norm)


@dataclass(frozen=True)
class TrainOutcome:
    """What a client did in a round; ``loss`` is the mean over its steps, without the proximal term."""

    examples: int
    steps: int
    loss: float


def train(
    model: FlatModel,
    split: Split,
    indices: NDArray[np.int64],
    options: Training,
    mean: Sequence[float],
    std: Sequence[float],
    seed: int | Sequence[int],
) -> TrainOutcome:
    """SGD from where the model stands, in place, on f(w) + mu/2 |w - w_start|^2 over the given examples.

    Each epoch is a new shuffle; its last batch may be smaller. Momentum starts at zero. Everything random, dropout
    too, is a function of ``seed``.
    """
    batch_size = options.batch_size
    sizes = _batch_sizes(len(indices), batch_size, model.has_batch_norm)
    steps = options.epochs * len(sizes) if options.steps is None else options.steps
    step = _Sgd(model, options)
    total = 0.0
    model.module.train()
    rng = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        done = 0
        while done < steps:
            order = indices[rng.permutation(len(indices))][: sum(sizes)]
            for images, labels in _batches(split, order, batch_size, mean, std, steps - done):
                model.gradient.zero_()
                loss = cross_entropy(model.module(images), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                value = loss.item()
                if not math.isfinite(value):
                    raise DivergenceError(
                        f"training diverged: the loss is {value} after {done} steps; lower lr (now {options.lr})"
                        " or set clip_norm"
                    )
                step()
                total += value
                done += 1
    if not bool(torch.isfinite(model.vector).all()):
        raise DivergenceError(f"training diverged in its last step; lower lr (now {options.lr}) or set clip_norm")
    return TrainOutcome(len(indices), steps, total / steps)


def evaluate(
    model: FlatModel | nn.Module, split: Split, mean: Sequence[float], std: Sequence[float]
) -> tuple[float, float]:
    """Accuracy in percent and mean cross-entropy over a whole split."""
    module = model.module if isinstance(model, FlatModel) else model
    count = len(split.labels)
    if count == 0:
        raise DataError("cannot evaluate on an empty split")
    correct, loss = 0, 0.0
    module.eval()
    with torch.no_grad():
        for images, labels in _batches(split, np.arange(count), _EVALUATION_CHUNK, mean, std, count):
            logits = module(images)
            loss += cross_entropy(logits, labels, reduction="sum").item()
            correct += int((logits.argmax(1) == labels).sum())
    return 100.0 * correct / count, loss / count


class _Sgd:
    """One step of SGD on the whole model, with the same arithmetic as torch.optim.SGD."""

    def __init__(self, model: FlatModel, options: Training) -> None:
        self._vector, self._gradient, self._options = model.vector, model.gradient, options
        if options.proximal_mu:
            self._start, self._drift = self._vector.clone(), torch.empty_like(self._vector)
        if options.momentum:
            self._velocity = torch.zeros_like(self._vector)

    def __call__(self) -> None:
        options, vector, gradient = self._options, self._vector, self._gradient
        if options.proximal_mu:
            torch.sub(vector, self._start, out=self._drift)
            gradient.add_(self._drift, alpha=options.proximal_mu)
        if options.clip_norm is not None:
            norm = float(torch.linalg.vector_norm(gradient))
            if norm > options.clip_norm:
                gradient.mul_(options.clip_norm / norm)
        if options.weight_decay:
            gradient.add_(vector, alpha=options.weight_decay)
        if options.momentum:
            gradient = self._velocity.mul_(options.momentum).add_(gradient)
        vector.add_(gradient, alpha=-options.lr)


def _batch_sizes(examples: int, batch_size: int, has_batch_norm: bool) -> list[int]:
    """The sizes of an epoch's batches; a batch of one has no variance, so batch normalization goes without it."""
    if examples == 0:
        raise DataError("cannot train on 0 examples; give each client at least one")
    full, rest = divmod(examples, batch_size)
    sizes = [batch_size] * full + [rest] * (rest > 0)
    if has_batch_norm:
        sizes = [size for size in sizes if size > 1]
        if not sizes:
            raise DataError(
                f"a model with batch normalization cannot train on {examples} example(s) in batches of {batch_size}: "
                "it needs at least 2 examples in a batch"
            )
    return sizes


def _batches(
    split: Split, order: NDArray[np.int64], batch_size: int, mean: Sequence[float], std: Sequence[float], limit: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Up to ``limit`` normalised batches in the given order, gathered and normalised many at a time."""
    scale = torch.tensor([1 / (255 * s) for s in std]).view(-1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)]).view(-1, 1, 1)
    order = order[: limit * batch_size]
    at_once = batch_size * max(1, _CHUNK_VALUES // (batch_size * math.prod(split.images.shape[1:])))
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        images = torch.from_numpy(split.images[chosen]).float().mul_(scale).add_(shift)
        labels = torch.from_numpy(split.labels[chosen])
        yield from zip(torch.split(images, batch_size), torch.split(labels, batch_size), strict=True)


def _tensor(array: NDArray[np.generic]) -> Tensor:
    """A tensor to copy from; torch warns about arrays it could not write to, so those are copied first."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _check_float32(layout: Layout) -> None:
    for tensor in (*layout.parameters, *layout.buffers):
        if tensor.dtype != "float32":
            raise OptionError(f"tensor {tensor.name!r} is {tensor.dtype}; a trained model must be float32")


def _require(sound: bool, name: str, expected: str, value: object) -> None:
    if not sound:
        raise OptionError(f"{name} must be {expected}, got {value!r}")
