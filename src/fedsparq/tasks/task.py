"""The Task protocol: all that an experiment must know of what its clients train; and tasks by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import OptionError
from fedsparq.federate.client import Trained
from fedsparq.federate.model import Model
from fedsparq.imports import load_function
from fedsparq.layout import Layout
from fedsparq.protocols import GradientHook
from fedsparq.tasks.options import call_checked

SUPERVISED = "supervised"
SPAFL = "spafl"
"""Personal models of the same data, of which clients share only thresholds."""
FORMER_NAME = "images"
"""What `supervised` was called when it knew nothing else; specs of that time say so."""
_METHODS = ("initial", "examples", "train", "evaluate")


class Task(Protocol):
    """What a federation trains. Every process makes its own, so the answers must follow from the arguments alone.

    Members that are optional: ``class_counts() -> (names, int64[clients, classes])`` says how many examples of each
    class each client holds, for the picture of the partition; ``train_examples`` how many there are in all. With
    ``remembers = True``, `train` is called with ``memory=``, the arrays that it gave as `Trained.memory` at this
    client's last training; they are saved with the client's state.
    """

    @property
    def layout(self) -> Layout:
        """The tensors of the model."""

    @property
    def device(self) -> str:
        """Where it is trained, such as ``cpu``."""

    def initial(self) -> Model:
        """The model before the first round."""

    def examples(self, client: int) -> int:
        """How many examples a client trains on."""

    def train(self, client: int, model: Model, round: int, hook: GradientHook | None) -> Trained:
        """A client's training in a round, from this model; the hook, where given, is called on each gradient."""

    def evaluate(self, model: Model) -> dict[str, float]:
        """Metrics by name; ``accuracy`` (in percent) and ``loss`` where they make sense."""


def load_task(name: str, options: Mapping[str, Any] | None = None, **offered: Any) -> Task:
    """A task by name: ``supervised``, or ``package.module:function`` as a user's own that returns a `Task`.

    The function gets all `options` by keyword, and of what a run has on offer (clients, seed, training, dataset, ...)
    what it has parameters for.
    """
    ours = {SUPERVISED: _supervised, FORMER_NAME: _supervised, SPAFL: _spafl}.get(name)
    make = ours() if ours else load_function(name, "task", [SUPERVISED, SPAFL])
    parameters = inspect.signature(make).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    known = {key: value for key, value in offered.items() if takes_all or key in parameters}
    made: Task = call_checked(f"task {name!r}", make, {**known, **(options or {})}, offered)
    missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if missing:
        raise OptionError(
            f"task {name!r} gave a {type(made).__name__} without {', '.join(missing)}; "
            "it must have the methods of fedsparq.tasks.Task"
        )
    return made


def class_counts(task: Task) -> tuple[Sequence[str], NDArray[np.int64]] | None:
    """The names of the classes, and how many examples of each the clients hold; None if the task does not say."""
    counts: Callable[[], tuple[Sequence[str], NDArray[np.int64]] | None] | None = getattr(task, "class_counts", None)
    return counts() if counts else None


def train_examples(task: Task, clients: int) -> int:
    """How many examples there are to train on."""
    stated: int | None = getattr(task, "train_examples", None)
    return sum(task.examples(client) for client in range(clients)) if stated is None else stated


def _supervised() -> Callable[..., Task]:
    from fedsparq.tasks.supervised import Supervised

    return Supervised


def _spafl() -> Callable[..., Any]:
    from fedsparq.tasks.spafl import SpaFL

    return SpaFL
