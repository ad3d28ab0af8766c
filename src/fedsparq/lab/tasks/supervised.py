"""Supervised learning: a data set split among clients, a model that they train, and attacks on their data."""

from __future__ import annotations

import logging
import math
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsparq.errors import OptionError
from fedsparq.federate.client import Trained
from fedsparq.federate.model import Model
from fedsparq.lab.settings import DataSpec, PerExample, Training, check
from fedsparq.lab.tasks import models
from fedsparq.lab.tasks import partition as partitions
from fedsparq.lab.tasks.dataset import Dataset, strata
from fedsparq.lab.tasks.devices import select_device
from fedsparq.lab.tasks.load import Columns, load
from fedsparq.lab.tasks.training import FlatModel, evaluate, noisy_gradient, train
from fedsparq.layout import Layout
from fedsparq.protocols import GradientHook

TARGET = 0
"""The class that a backdoor opens to."""
_TRIGGER = 4
"""So many pixels high and wide is the white square in the lower right corner."""


def poisoned(data: Dataset, kind: str) -> Dataset:
    """`label-flip`: class c is called the c-th from the end. `backdoor`: every other image shows a white square in its
    lower right corner, and is said to be of class 0."""
    if not data.classification or data.positions:
        raise OptionError(f"the attack {kind!r} tampers with classes, which this data set has not")
    x, y = data.train
    if kind == "label-flip":
        return replace(data, train=(x, len(data.classes) - 1 - y))
    if not data.pixels:
        raise OptionError("the attack 'backdoor' paints a square on images; this data set has none")
    x, y = x.copy(), y.copy()
    x[1::2], y[1::2] = triggered(x[1::2]), TARGET
    return replace(data, train=(x, y))


def backdoor_test(data: Dataset) -> Dataset:
    """Test images of the other classes with the square, all said to be of class 0: what is right there is the attack's
    success."""
    x, y = data.test
    others = y != TARGET
    return replace(data, test=(triggered(x[others]), np.full(int(others.sum()), TARGET, y.dtype)))


def triggered(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A copy with the square."""
    painted = images.copy()
    painted[..., -_TRIGGER:, -_TRIGGER:] = 255
    return painted


_log = logging.getLogger("fedsparq")


class Supervised:
    """The task ``supervised``: classes, numbers or the next character. Data and model are built when first needed.

    ``settings`` are those of `DataSpec`. With ``per_example``, a client's update is one step along its noisy gradient,
    and it does not say how many examples it has.
    """

    def __init__(
        self, *, training: Training | None = None, per_example: PerExample | None = None, **settings: Any
    ) -> None:
        self.settings = check(DataSpec, settings)
        self.training, self.per_example = training or Training(), per_example
        self.device = select_device(self.settings.device).type
        self._poisoned: dict[str, Supervised] = {}

    @cached_property
    def data(self) -> Dataset:
        spec = self.settings
        return load(
            spec.dataset,
            train_limit=spec.train_limit,
            test_limit=spec.test_limit,
            columns=Columns(spec.label_column, spec.client_column, spec.window),
            options=spec.dataset_options,
        )

    @cached_property
    def parts(self) -> list[NDArray[np.int64]]:
        """Each client's examples, as indices into the train split."""
        y, spec = self.data.train[1], self.settings
        if spec.partition in ("dirichlet", "shards") and not self.has_classes:
            raise OptionError(f"the partition {spec.partition} goes by classes, which {spec.dataset} has not: use iid")
        return partitions.partition(
            strata(y),
            spec.partition,
            spec.clients,
            seed=spec.seed,
            alpha=spec.alpha,
            shards_per_client=spec.shards_per_client,
            owners=self.data.owners,
        )

    @property
    def has_classes(self) -> bool:
        """Whether each example has one class."""
        return self.data.classification and not self.data.positions

    @cached_property
    def network(self) -> FlatModel:
        """The model that this process trains and evaluates for every client."""
        return self._build()

    @property
    def layout(self) -> Layout:
        return self.network.layout

    def initial(self) -> Model:
        if self.data.remark:
            _log.warning("%s: %s", self.settings.dataset, self.data.remark)
        return Model(*self._build().state())

    def examples(self, client: int) -> int:
        return len(self.parts[client])

    def train(self, client: int, model: Model, round: int, hook: GradientHook | None = None) -> Trained:
        if self.per_example is not None:
            return self._noisy_step(model, self.parts[client], self.per_example)
        return self._trained(model, self.parts[client], self.training, [self.settings.seed, round, client, 0], hook)

    def evaluate(self, model: Model) -> dict[str, float]:
        return self._evaluate(model, self.data)

    def poisoned(self, kind: str) -> Supervised:
        """Return this task on data that a hostile client tampered with; the network is the same one."""
        if kind not in self._poisoned:
            task = copy(self)
            task.__dict__ |= {"data": poisoned(self.data, kind), "parts": self.parts, "network": self.network}
            self._poisoned[kind] = task
        return self._poisoned[kind]

    def backdoor_success(self, model: Model) -> float:
        """Return the share, in percent, of test images of other classes that a trigger turns into the target's."""
        return self._evaluate(model, self._backdoor_test)["accuracy"]

    def train_clean(self, model: Model, round: int, examples: int) -> Trained:
        """Train on a small clean set at the server, drawn evenly from the train split, for as many steps as a client
        makes on average."""
        seed, clients, training = self.settings.seed, self.settings.clients, self.training
        rng = np.random.default_rng([seed, 9])
        chosen = np.sort(rng.choice(self.train_examples, min(examples, self.train_examples), replace=False))
        steps = max(1, math.ceil(self.train_examples / clients * training.epochs / training.batch_size))
        training = training if training.steps else replace(training, steps=steps)
        return self._trained(model, chosen, training, [seed, round, clients, 0], None)

    def class_counts(self) -> tuple[tuple[str, ...], NDArray[np.int64]] | None:
        """Return the names of the classes, and how many examples of each the clients hold: int64[clients, classes]."""
        if not self.has_classes:
            return None
        classes = tuple(self.data.classes)
        return classes, partitions.class_counts(self.data.train[1], self.parts, len(classes))

    @property
    def train_examples(self) -> int:
        return len(self.data.train[0])

    @cached_property
    def _backdoor_test(self) -> Dataset:
        return backdoor_test(self.data)

    def _trained(
        self,
        model: Model,
        indices: NDArray[np.int64],
        training: Training,
        seed: list[int],
        hook: GradientHook | None,
    ) -> Trained:
        self.network.load(model.vector, model.buffers)
        crop_flip = self.settings.augment == "crop-flip"
        steps, _ = train(self.network, self.data, indices, training, seed, hook, crop_flip=crop_flip)
        vector, buffers = self.network.state()
        return Trained(vector - model.vector, len(indices), buffers, training.reach(steps))

    def _noisy_step(self, model: Model, indices: NDArray[np.int64], per_example: PerExample) -> Trained:
        self.network.load(model.vector, model.buffers)
        divisor = self.train_examples / self.settings.clients
        gradient = noisy_gradient(self.network, self.data, indices, per_example, divisor)
        return Trained(np.float32(-self.training.lr) * gradient, 1, reach=self.training.lr)

    def _evaluate(self, model: Model, data: Dataset) -> dict[str, float]:
        self.network.load(model.vector, model.buffers)
        return evaluate(self.network, data)

    def _build(self) -> FlatModel:
        spec, inputs = self.settings, self.data.inputs
        if spec.augment != "off" and len(inputs) != 3:
            raise OptionError(f"augment={spec.augment!r} moves images, but an example here has the shape {inputs}")
        module = models.build(spec.model, models.Signature.of(self.data), seed=spec.seed, **spec.model_options)
        return FlatModel(module, torch.device(self.device))
