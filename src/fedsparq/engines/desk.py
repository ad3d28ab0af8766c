"""Where a client's work is done: data, model and state of an experiment, in one process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress.pipeline import Method
from fedsparq.errors import OptionError
from fedsparq.experiments.spec import RunSpec
from fedsparq.federate.client import Answer, Client, Train, Trained
from fedsparq.federate.model import Model
from fedsparq.federate.state import ClientState
from fedsparq.federate.store import DiskStore, Loaded, Store
from fedsparq.layout import Layout
from fedsparq.learn import models, training
from fedsparq.learn.data import Dataset, load
from fedsparq.learn.partition import partition


@dataclass(frozen=True)
class Task:
    """What an experiment trains on: the same in every process that works for it."""

    spec: RunSpec

    @cached_property
    def dataset(self) -> Dataset:
        return load(self.spec.dataset, train_limit=self.spec.train_limit, test_limit=self.spec.test_limit)

    @cached_property
    def parts(self) -> list[NDArray[np.int64]]:
        """Each client's examples."""
        spec = self.spec
        return partition(
            self.dataset.train.labels,
            spec.partition,
            spec.clients,
            seed=spec.seed,
            alpha=spec.alpha,
            shards_per_client=spec.shards_per_client,
        )

    @cached_property
    def model(self) -> training.FlatModel:
        """The model, as it is before the first round until something is loaded into it."""
        _, channels, height, width = self.dataset.train.images.shape
        if height != width:
            raise OptionError(f"the images of {self.spec.dataset} are {height} x {width}; the models take square ones")
        module = models.build(
            self.spec.model,
            classes=len(self.dataset.classes),
            channels=channels,
            size=height,
            seed=self.spec.seed,
            **self.spec.model_options,
        )
        return training.FlatModel(module)

    @property
    def layout(self) -> Layout:
        return self.model.layout

    def take(self) -> Model:
        """A copy of the model as it is now."""
        exact = self.model.exact() if self.layout.buffers or self.layout.counters else None
        return Model(self.model.vector.numpy().copy(), exact)

    def train(self, client: int, model: Model, method: Method, number: int) -> Trained:
        """A client's training in a round."""
        spec = self.spec
        self.model.load(model.vector, model.exact)
        options = training.Training(**spec.training.model_dump(), proximal_mu=method.proximal_mu)
        outcome = training.train(
            self.model,
            self.dataset.train,
            self.parts[client],
            options,
            self.dataset.mean,
            self.dataset.std,
            [spec.seed, number, client, 0],
        )
        after = self.take()
        return Trained(after.vector - model.vector, outcome.examples, after.exact)

    def evaluate(self, model: Model) -> tuple[float, float]:
        """Accuracy in percent and loss on the test set."""
        self.model.load(model.vector, model.exact)
        return training.evaluate(self.model, self.dataset.test, self.dataset.mean, self.dataset.std)


@dataclass(frozen=True)
class Desk:
    """Does the clients' work of an experiment, their states in a folder."""

    task: Task
    states: Path

    def answer(self, client: int, message: bytes, saved: int, dies_before_saving: bool = False) -> Answer:
        """One client's answer to a broadcast; `saved` is the round of the last checkpoint."""
        store: Store = DiskStore(self.states, saved)
        if dies_before_saving:
            store = _Forgetting(store)
        worker = Client(client, self.task.layout, self._train(client), store, self.task.spec.seed)
        answer = worker.answer(message)
        return replace(answer, message=None, sent=0) if dies_before_saving else answer

    def _train(self, client: int) -> Train:
        return lambda model, method, number: self.task.train(client, model, method, number)


@dataclass(frozen=True)
class _Forgetting:
    """The store of a client that will die before it has saved anything."""

    store: Store

    def load(self, client: int, layout: Layout) -> Loaded:
        return self.store.load(client, layout)

    def save(self, client: int, state: ClientState) -> None:
        pass
