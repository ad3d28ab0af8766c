"""What carries a round's messages between server and clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from fedsparq.errors import OptionError
from fedsparq.federate.acknowledge import Resolve
from fedsparq.federate.client import Answer, Client, Trained
from fedsparq.federate.masked import MaskedClient, is_masked
from fedsparq.federate.model import Model
from fedsparq.federate.rounds import Delivery
from fedsparq.federate.state import ClientState
from fedsparq.federate.store import DiskStore
from fedsparq.imports import importable_from_here
from fedsparq.lab.engines.attacks import Attack
from fedsparq.lab.specs import RunSpec
from fedsparq.lab.tasks import DataSpec, Task, load_task
from fedsparq.lab.tasks.task import Poisonable, Remembers
from fedsparq.methods.registry import resolver
from fedsparq.protocols import GradientHook


@dataclass(frozen=True)
class Asked:
    """What the server asks of some clients in a round."""

    round: int
    broadcasts: Mapping[int, bytes]
    saved: int
    """The round of the last checkpoint."""
    dying: frozenset[int] = frozenset()
    """These clients crash before they save their state."""


class Engine(Protocol):
    """Carries broadcasts to the clients and their answers back."""

    def exchange(self, asked: Asked) -> Iterator[Delivery]:
        """Answers of a round in the order of the clients' numbers."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        return


MakeEngine = Callable[[RunSpec, Task, Path], Engine]
"""Makes an engine for a run, given its task and a folder for the clients' states."""


@dataclass(frozen=True)
class Worker:
    """Does the clients' work of an experiment, their states in a folder."""

    spec: RunSpec
    task: Task
    states: Path
    keys: Path | None = None
    """Where a node keeps the keys by which nodes know each other, over all its runs. None in a simulation: they are
    with the states, which the run makes safe all at once."""

    def answer(self, client: int, message: bytes, saved: int, dies_before_saving: bool = False) -> Answer:
        """One client's answer to a broadcast; `saved` is the round of the last checkpoint."""
        store = (_Forgetting if dies_before_saving else DiskStore)(self.states, saved, durable=self.keys is not None)

        def train(model: Model, hook: GradientHook | None, number: int, **more: Any) -> Trained:
            return self._task(client, number).train(client, model, number, hook, **more)

        own = Client(client, self.task.layout, train, store, self._resolve, self.spec.seed, self._remembers)
        if is_masked(message):
            return MaskedClient(own, self.states / f"secrets-{client}", self.keys).answer(message)
        answer = own.answer(message)
        return replace(answer, message=None, sent=0) if dies_before_saving else answer

    def _task(self, client: int, number: int) -> Task:
        """What a client trains in a round; one that is hostile may have tampered with its data."""
        kind = self._attack.poison(number, client)
        return poisoned(self.task, kind) if kind else self.task

    @cached_property
    def _attack(self) -> Attack:
        return Attack(self.spec.faults, self.spec.clients, self.spec.seed)

    @cached_property
    def _resolve(self) -> Resolve:
        return resolver(self.spec.method)  # known here, from wherever the spec says

    @cached_property
    def _remembers(self) -> bool:
        return isinstance(self.task, Remembers) and self.task.remembers


@lru_cache(maxsize=1)
def worker_of(spec: str, states: Path, keys: Path | None = None) -> Worker:
    """The worker of a process that works for one run, whose spec came as JSON."""
    checked = RunSpec.model_validate_json(spec)
    return Worker(checked, build_task(checked), states, keys)


def build_task(spec: RunSpec) -> Task:
    """What a run trains: the same in every process that works for it."""
    provided = {name: getattr(spec, name) for name in (*DataSpec.model_fields, "training", "per_example")}
    return load_task(spec.task, spec.task_options, **provided)


def poisoned(task: Task, kind: str) -> Task:
    """Return a task whose data were tampered with."""
    if not isinstance(task, Poisonable):
        raise OptionError(f"hostile_kinds: {kind!r} tampers with data, and the task {type(task).__name__} cannot")
    return task.poisoned(kind)


def import_homes(modules: list[str]) -> None:
    """Import the modules in which a run's methods were registered, so that a new process knows their names."""
    with importable_from_here():
        for module in modules:
            import_module(module)


class _Forgetting(DiskStore):
    """The store of a client that will die before it has saved anything."""

    def save(self, client: int, state: ClientState) -> None:
        pass
