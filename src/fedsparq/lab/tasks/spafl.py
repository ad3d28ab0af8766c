"""SpaFL (Kim 2024): each client prunes a model of its own by thresholds, and the thresholds are all that is shared.

Weights never leave a client: they are its memory. There is no global model to test. Accuracy is that of the personal
models, each on a part of the test split with the classes that its client trains on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.sgd import sgd

from fedsparq.errors import OptionError
from fedsparq.federate.client import Trained
from fedsparq.federate.model import Model
from fedsparq.lab.tasks.devices import seeded
from fedsparq.lab.tasks.supervised import Supervised
from fedsparq.lab.tasks.training import SGD_DEFAULTS, DivergenceError, FlatModel, batches, evaluate, loss_function
from fedsparq.layout import Arrays, Layout
from fedsparq.protocols import GradientHook

_SPARSEST = 0.01
"""A layer of which no more than this is left gets thresholds of 0 again."""


class SpaFL(Supervised):
    """The task ``spafl``: the data, model and training of `supervised`, with a threshold for each output of a layer."""

    remembers: ClassVar[bool] = True

    @cached_property
    def pruned(self) -> Pruned:
        """The model that this process trains, whosever turn it is."""
        network = self._build()
        if network.layout.buffers or network.layout.counters:
            raise OptionError(
                f"the task 'spafl' is for models without batch normalization; {self.settings.model!r} has it"
            )
        return Pruned(network)

    @property
    def layout(self) -> Layout:
        return self.pruned.layout

    def initial(self) -> Model:
        return Model(np.zeros(self.layout.size, np.float32))

    def train(  # type: ignore[override]
        self, client: int, model: Model, round: int, hook: GradientHook | None = None, *, memory: Arrays
    ) -> Trained:
        pruned, thresholds = self.pruned, torch.tensor(model.vector)
        weights = torch.tensor(memory["weights"] if memory else self._build().state()[0])
        if memory:
            pruned.follow(weights, thresholds - torch.tensor(memory["thresholds"]))
        self._steps(pruned, weights, thresholds, client, round, hook)
        pruned.prune(weights, thresholds)
        (x, y), chosen = self.data.test, self.test_part(client)
        own = replace(self.data, test=(x[chosen], y[chosen]))
        metrics = {f"personal_{name}": value for name, value in evaluate(pruned.network, own).items()}
        metrics["density"] = pruned.density(weights, thresholds)
        after = thresholds.numpy()
        return Trained(
            after - model.vector,
            self.examples(client),
            memory={"weights": weights.numpy(), "thresholds": after},
            metrics=metrics,
        )

    def evaluate(self, model: Model) -> dict[str, float]:
        """Nothing: thresholds alone classify nothing."""
        return {}

    def test_part(self, client: int) -> NDArray[np.int64]:
        """Of the test split as much as is due to one of the clients, with the classes of what this one trains on."""
        labels, rng = self.data.test[1], np.random.default_rng([self.settings.seed, client, 11])
        wanted = max(1, len(labels) // self.settings.clients)
        if not self.has_classes:
            return np.sort(rng.choice(len(labels), wanted, replace=False))
        own = self.data.train[1][self.parts[client]]
        drawn = []
        for label in np.unique(own):
            there = np.flatnonzero(labels == label)
            count = min(len(there), round(wanted * float((own == label).mean())))
            drawn.append(rng.choice(there, count, replace=False))
        part = np.sort(np.concatenate(drawn))
        return part if len(part) else np.arange(len(labels))

    def _steps(
        self,
        pruned: Pruned,
        weights: Tensor,
        thresholds: Tensor,
        client: int,
        round: int,
        hook: GradientHook | None,
    ) -> None:
        """SGD on weights and thresholds alike, both in place."""
        options, network, start = self.training, pruned.network, thresholds.clone()
        indices, done = self.parts[client], 0
        steps = options.steps or options.epochs * -(-len(indices) // options.batch_size)
        speed: list[Tensor | None] = [None, None]
        rng = np.random.default_rng([self.settings.seed, round, client, 0])
        network.module.train()
        with seeded(network.device, int(rng.integers(2**63))):
            while done < steps:
                order = indices[rng.permutation(len(indices))][: (steps - done) * options.batch_size]
                for inputs, targets in batches(
                    self.data, self.data.train, order, options.batch_size, device=network.device
                ):
                    pruned.prune(weights, thresholds)
                    network.gradient.zero_()
                    loss = loss_function(network.module(inputs), targets)
                    loss.backward()  # type: ignore[no-untyped-call]
                    if not bool(torch.isfinite(loss)):
                        raise DivergenceError(f"training diverged after {done} steps; lower lr (now {options.lr})")
                    gradients = pruned.gradients(weights, thresholds)
                    if hook:
                        hook(gradients[1], thresholds, start)
                    if options.clip_norm is not None:
                        _clip(gradients, options.clip_norm)
                    rates: dict[str, Any] = {
                        "lr": options.lr,
                        "momentum": options.momentum,
                        "weight_decay": options.weight_decay,
                    }
                    sgd([weights, thresholds], gradients, speed, **rates, **SGD_DEFAULTS)
                    pruned.reset_empty(weights, thresholds.clamp_(min=0))
                    done += 1


class Pruned:
    """A network whose weights are shown to it with the outputs cut off that lie below their thresholds."""

    def __init__(self, network: FlatModel) -> None:
        self.network = network
        self._layers = [tensor for tensor in network.layout.parameters if len(tensor.shape) > 1]
        self.layout = Layout.of({tensor.name: (tensor.shape[0],) for tensor in self._layers})

    def masks(self, weights: Tensor, thresholds: Tensor) -> list[Tensor]:
        """For each layer, which outputs are left: those whose mean magnitude is above the threshold."""
        pairs = zip(self._matrices(weights), self._rows(thresholds), strict=True)
        return [(matrix.abs().mean(1) > threshold).float() for matrix, threshold in pairs]

    def prune(self, weights: Tensor, thresholds: Tensor) -> None:
        """Show the network what is left of the weights."""
        self.network.vector.copy_(weights)
        shown = self._matrices(self.network.vector)
        for matrix, mask in zip(shown, self.masks(weights, thresholds), strict=True):
            matrix.mul_(mask[:, None])

    def gradients(self, weights: Tensor, thresholds: Tensor) -> list[Tensor]:
        """Of weights and thresholds, from the gradient G of the pruned weights W: a mask passes it on as if it were
        1 - threshold, so that of a threshold it is - sum G W. What is cut off learns nothing."""
        masks, found = self.masks(weights, thresholds), self._matrices(self.network.gradient)
        matrices = self._matrices(weights)
        slopes = [-(gradient * matrix).sum(1) for gradient, matrix in zip(found, matrices, strict=True)]
        of_weights = self.network.gradient.clone()
        for matrix, mask in zip(self._matrices(of_weights), masks, strict=True):
            matrix.mul_(mask[:, None])
        return [of_weights, torch.cat(slopes)]

    def follow(self, weights: Tensor, change: Tensor) -> None:
        """Move weights with thresholds that others moved: W -= sign(sum W) change / inputs (of a convolution its
        kernel's size)."""
        for tensor, matrix, moved in zip(self._layers, self._matrices(weights), self._rows(change), strict=True):
            inputs = matrix.shape[1] if len(tensor.shape) == 2 else tensor.shape[-1] * tensor.shape[-2]
            matrix.sub_(matrix.sum(1).sign()[:, None] * (moved / inputs)[:, None])

    def reset_empty(self, weights: Tensor, thresholds: Tensor) -> None:
        """Thresholds of 0 for layers of which next to nothing is left."""
        for mask, rows in zip(self.masks(weights, thresholds), self._rows(thresholds), strict=True):
            if float(mask.mean()) <= _SPARSEST:
                rows.zero_()

    def density(self, weights: Tensor, thresholds: Tensor) -> float:
        """Which share of the weights is left."""
        sizes = [tensor.size for tensor in self._layers]
        left = [float(mask.mean()) * size for mask, size in zip(self.masks(weights, thresholds), sizes, strict=True)]
        return sum(left) / sum(sizes)

    def _matrices(self, vector: Tensor) -> list[Tensor]:
        return [vector[tensor.span].view(tensor.shape[0], -1) for tensor in self._layers]

    def _rows(self, thresholds: Tensor) -> list[Tensor]:
        return [thresholds[tensor.span] for tensor in self.layout.parameters]


def _clip(gradients: list[Tensor], limit: float) -> None:
    norm = float(torch.linalg.vector_norm(torch.cat(gradients)))
    if norm > limit:
        for gradient in gradients:
            gradient.mul_(limit / norm)
