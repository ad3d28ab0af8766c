"""Supervised learning: a data set dealt out to clients, and a model that they train."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil as round_up
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsparq.errors import OptionError
from fedsparq.federate.client import Trained
from fedsparq.federate.model import Model
from fedsparq.layout import Layout
from fedsparq.protocols import GradientHook
from fedsparq.tasks import devices, models, poison
from fedsparq.tasks import partition as partitions
from fedsparq.tasks.augment import AUGMENTS
from fedsparq.tasks.columns import Columns
from fedsparq.tasks.data import Dataset, load
from fedsparq.tasks.dataset import strata
from fedsparq.tasks.evaluation import evaluate
from fedsparq.tasks.flat_model import FlatModel
from fedsparq.tasks.options import PerExample, Training
from fedsparq.tasks.per_example import noisy_gradient
from fedsparq.tasks.training import train

_log = logging.getLogger("fedsparq")


@dataclass(frozen=True, eq=False)
class Supervised:
    """The task ``supervised``: classes, numbers or the next character. Data and model are made when first needed."""

    dataset: str = "mnist-mini"
    model: str = "mlp"
    dataset_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    label_column: str = ""
    client_column: str = ""
    window: int = 80
    partition: str = "iid"
    alpha: float = 0.5
    shards_per_client: int = 2
    clients: int = 3
    seed: int = 0
    train_limit: int | None = None
    test_limit: int | None = None
    training: Training = field(default_factory=Training)
    augment: str = "off"
    device: str = "cpu"
    """Becomes the device that ``auto`` chose."""
    precision: str = "float32"
    per_example: PerExample | None = None
    """Where given, a client's update is one step along its noisy gradient, and it does not say how many examples it
    has."""

    @cached_property
    def data(self) -> Dataset:
        return load(
            self.dataset,
            train_limit=self.train_limit,
            test_limit=self.test_limit,
            columns=Columns(self.label_column, self.client_column, self.window),
            options=self.dataset_options,
        )

    def __post_init__(self) -> None:
        if self.augment not in AUGMENTS:
            raise OptionError(f"unknown augment {self.augment!r}: choose from {', '.join(AUGMENTS)}")
        chosen = devices.choose(self.device)
        devices.check_precision(chosen, self.precision)
        object.__setattr__(self, "device", chosen.type)

    @cached_property
    def parts(self) -> list[NDArray[np.int64]]:
        """Each client's examples, as indices into the train split."""
        y = self.data.train[1]
        if self.partition in ("dirichlet", "shards") and not self.has_classes:
            raise OptionError(f"the partition {self.partition} goes by classes, which {self.dataset} has not: use iid")
        return partitions.partition(
            strata(y),
            self.partition,
            self.clients,
            seed=self.seed,
            alpha=self.alpha,
            shards_per_client=self.shards_per_client,
            owners=self.data.owners,
        )

    @property
    def has_classes(self) -> bool:
        """Whether each example has one class."""
        return self.data.classification and not self.data.positions

    @cached_property
    def network(self) -> FlatModel:
        """The model that this process trains and evaluates, whosever turn it is."""
        return self._build()

    @property
    def layout(self) -> Layout:
        return self.network.layout

    def initial(self) -> Model:
        if self.data.remark:
            _log.warning("%s: %s", self.dataset, self.data.remark)
        return Model(*self._build().state())

    def examples(self, client: int) -> int:
        return len(self.parts[client])

    def train(self, client: int, model: Model, round: int, hook: GradientHook | None = None) -> Trained:
        if self.per_example is not None:
            return self._noisy_step(model, self.parts[client], self.per_example)
        return self._trained(model, self.parts[client], self.training, [self.seed, round, client, 0], hook)

    def _trained(
        self,
        model: Model,
        indices: NDArray[np.int64],
        training: Training,
        seed: list[int],
        hook: GradientHook | None,
    ) -> Trained:
        self.network.load(model.vector, model.buffers)
        moving = self.augment == "crop-flip"
        steps, _ = train(
            self.network, self.data, indices, training, seed, hook, precision=self.precision, crop_flip=moving
        )
        vector, buffers = self.network.state()
        return Trained(vector - model.vector, len(indices), buffers, training.reach(steps))

    def _noisy_step(self, model: Model, indices: NDArray[np.int64], per_example: PerExample) -> Trained:
        self.network.load(model.vector, model.buffers)
        usual = self.train_examples / self.clients
        gradient = noisy_gradient(self.network, self.data, indices, per_example, usual)
        return Trained(np.float32(-self.training.lr) * gradient, 1, reach=self.training.lr)

    def evaluate(self, model: Model) -> dict[str, float]:
        self.network.load(model.vector, model.buffers)
        return evaluate(self.network, self.data, precision=self.precision)

    def poisoned(self, kind: str) -> Supervised:
        """This task on data that a hostile client tampered with; the network is the same one."""
        if kind not in self._poisoned:
            task = replace(self)
            task.__dict__.update(data=poison.poisoned(self.data, kind), parts=self.parts, network=self.network)
            self._poisoned[kind] = task
        return self._poisoned[kind]

    def backdoor_success(self, model: Model) -> float:
        """The share, in percent, of test images of other classes that a trigger turns into the target's."""
        self.network.load(model.vector, model.buffers)
        return evaluate(self.network, self._backdoor_test, precision=self.precision)["accuracy"]

    @cached_property
    def _poisoned(self) -> dict[str, Supervised]:
        return {}

    @cached_property
    def _backdoor_test(self) -> Dataset:
        return poison.backdoor_test(self.data)

    def train_clean(self, model: Model, round: int, examples: int) -> Trained:
        """Training on a small clean set at the server, drawn evenly from the train split, for as many steps as a
        client makes on average."""
        rng = np.random.default_rng([self.seed, 9])
        chosen = np.sort(rng.choice(self.train_examples, min(examples, self.train_examples), replace=False))
        steps = max(1, round_up(self.train_examples / self.clients * self.training.epochs / self.training.batch_size))
        training = self.training if self.training.steps else replace(self.training, steps=steps)
        return self._trained(model, chosen, training, [self.seed, round, self.clients, 0], None)

    def class_counts(self) -> tuple[tuple[str, ...], NDArray[np.int64]] | None:
        """The names of the classes, and how many examples of each the clients hold: int64[clients, classes]."""
        if not self.has_classes:
            return None
        classes = tuple(self.data.classes)
        return classes, partitions.class_counts(self.data.train[1], self.parts, len(classes))

    @property
    def train_examples(self) -> int:
        return len(self.data.train[0])

    def _build(self) -> FlatModel:
        if self.augment != "off" and len(self.data.inputs) != 3:
            raise OptionError(
                f"augment={self.augment!r} moves images, but an example here has the shape {self.data.inputs}"
            )
        signature = models.Signature.of(self.data)
        module = models.build(self.model, signature, seed=self.seed, **self.model_options)
        return FlatModel(module, torch.device(self.device))
