"""The Task protocol: what a federation trains; and tasks by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import OptionError
from fedsparq.federate.client import Trained
from fedsparq.federate.model import Model
from fedsparq.imports import call_checked, load_function
from fedsparq.lab.settings import SUPERVISED as SUPERVISED
from fedsparq.layout import Layout
from fedsparq.protocols import GradientHook

SPAFL = "spafl"
"""Personal models of the same data, of which clients share only thresholds."""
FORMER_NAME = "images"
"""The name of `supervised` in specs of 0.1.0."""
POISONS = ("label-flip", "backdoor")
"""How hostile clients may tamper with their data: see `Poisonable`."""
_METHODS = ("initial", "examples", "train", "evaluate")


class Task(Protocol):
    """What a federation trains. Every process builds its own, so the results must follow from the arguments alone.

    A task may also have what `CountsClasses`, `CountsExamples`, `Poisonable`, `TrainsClean` and `Remembers` list.
    """

    @property
    def layout(self) -> Layout:
        """Return the tensors of the model."""

    @property
    def device(self) -> str:
        """Return where it is trained, such as ``cpu``."""

    def initial(self) -> Model:
        """Return the model before the first round."""

    def examples(self, client: int) -> int:
        """Return how many examples a client trains on."""

    def train(self, client: int, model: Model, round: int, hook: GradientHook | None) -> Trained:
        """Train one client from this model; the hook, where given, is called on each gradient."""

    def evaluate(self, model: Model) -> dict[str, float]:
        """Return metrics by name; ``accuracy`` (in percent) and ``loss`` where they make sense."""


@runtime_checkable
class CountsClasses(Protocol):
    """A task whose partition can be shown."""

    def class_counts(self) -> tuple[Sequence[str], NDArray[np.int64]] | None:
        """Return the names of the classes, and how many examples of each the clients hold: int64[clients, classes]."""


@runtime_checkable
class CountsExamples(Protocol):
    """A task that has more training examples than its clients hold."""

    @property
    def train_examples(self) -> int:
        """Return how many training examples there are in all."""


@runtime_checkable
class Poisonable(Protocol):
    """A task on which attacks that tamper with data can be simulated."""

    def poisoned(self, kind: str) -> Task:
        """Return this task on data that a hostile client tampered with."""

    def backdoor_success(self, model: Model) -> float:
        """Return the share, in percent, of test examples of other classes that a trigger turns into the target's."""


@runtime_checkable
class TrainsClean(Protocol):
    """A task that has a small clean set for the server, as `fltrust` needs."""

    def train_clean(self, model: Model, round: int, examples: int) -> Trained:
        """Train on `examples` clean examples at the server."""


@runtime_checkable
class Remembers(Protocol):
    """A task with a state per client: with ``remembers = True``, `train` is called with ``memory=``, the arrays that it
    returned as `Trained.memory` at this client's last training."""

    remembers: bool


def load_task(name: str, options: Mapping[str, Any] | None = None, **provided: Any) -> Task:
    """Build a task by name: ``supervised``, or ``package.module:function`` as a user's own that returns a `Task`.

    The function gets all `options` by keyword, and of what a run provides (clients, seed, training, dataset, ...)
    what it has parameters for.
    """
    ours = {SUPERVISED: _supervised, FORMER_NAME: _supervised, SPAFL: _spafl}.get(name)
    make = ours() if ours else load_function(name, "task", [SUPERVISED, SPAFL])
    parameters = inspect.signature(make).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    known = {key: value for key, value in provided.items() if takes_all or key in parameters}
    built: Task = call_checked(f"task {name!r}", make, {**known, **(options or {})}, provided)
    missing = [method for method in _METHODS if not callable(getattr(built, method, None))]
    if missing:
        raise OptionError(
            f"task {name!r} gave a {type(built).__name__} without {', '.join(missing)}; "
            "it must have the methods of fedsparq.lab.tasks.Task"
        )
    return built


def class_counts(task: Task) -> tuple[Sequence[str], NDArray[np.int64]] | None:
    """Return the names of the classes, and the examples of each per client; None if the task does not count them."""
    return task.class_counts() if isinstance(task, CountsClasses) else None


def train_examples(task: Task, clients: int) -> int:
    """Return how many examples there are to train on."""
    if isinstance(task, CountsExamples):
        return task.train_examples
    return sum(task.examples(client) for client in range(clients))


def _supervised() -> Callable[..., Task]:
    from fedsparq.lab.tasks.supervised import Supervised

    return Supervised


def _spafl() -> Callable[..., Any]:
    from fedsparq.lab.tasks.spafl import SpaFL

    return SpaFL
