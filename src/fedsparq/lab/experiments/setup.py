"""Build the objects of a run from its spec: task, method, server, engine and privacy accountant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsparq.aggregate import FLTrust
from fedsparq.aggregate.private import most_participations
from fedsparq.errors import OptionError
from fedsparq.federate.downlink import Downlink
from fedsparq.federate.model import Model
from fedsparq.federate.server import Server
from fedsparq.lab.engines.engine import Engine, MakeEngine, build_task, poisoned
from fedsparq.lab.engines.faults import FaultyEngine
from fedsparq.lab.engines.local import LocalEngine
from fedsparq.lab.paper import message_bytes
from fedsparq.lab.specs import RunSpec
from fedsparq.lab.specs.privacy import private_mean
from fedsparq.lab.tasks import Task
from fedsparq.lab.tasks.task import POISONS, TrainsClean
from fedsparq.layout import Layout
from fedsparq.method import Method
from fedsparq.secure import Terms

PAPER_BYTES = "upload_bytes_paper"
"""The measure of a reply in the paper's accounting."""
NOT_PRIVATE = (
    *("clients", "events", "kept", "kept_layers", "seconds", "upload_bytes", "download_bytes", PAPER_BYTES),
    *("train_examples", "class_counts"),
)
"""What the folder of a private run says of its clients without any noise: it is for the experimenter alone."""


@dataclass(frozen=True)
class Experiment:
    """The objects of a run."""

    spec: RunSpec
    task: Task
    server: Server


def build(spec: RunSpec) -> Experiment:
    """Build task and server; OptionError where the task cannot do what the spec asks for."""
    task = build_task(spec)
    if spec.privacy.wanted and task.layout.buffer_size:
        raise OptionError(
            f"model {spec.model!r} has BatchNorm statistics, which no noise covers: take one with GroupNorm, or none"
        )
    for kind in set(spec.faults.hostile_kinds) & set(POISONS):
        poisoned(task, kind)
    server = Server(
        task.layout,
        build_method(spec, task),
        task.initial(),
        validation=spec.server.validation(spec.acknowledge),
        downlink=Downlink(task.layout, spec.lattice),
        own_methods=spec.client_methods(lambda client: participations(spec, client)),
        measures={PAPER_BYTES: message_bytes},
    )
    return Experiment(spec, task, server)


def build_method(spec: RunSpec, task: Task) -> Method:
    """Build the method with the noise and the clean set that its aggregator may need."""
    method = with_root_data(spec.chosen_method(), task)
    if not (spec.privacy.wanted and spec.privacy.secure_sums):
        return method
    terms = spec.privacy.terms(method, task.layout, spec.folder_name, 1, spec.clients_a_round)
    return spec.privacy.with_own_noise(method, task.layout, terms)


def with_root_data(method: Method, task: Task) -> Method:
    """Return the method with the clean set that the task draws for its server, where its aggregator needs one."""
    rule = method.aggregator
    if not isinstance(rule, FLTrust) or rule.train is not None:
        return method
    if not isinstance(task, TrainsClean):
        raise OptionError(f"fltrust needs a task with a method `train_clean`, which {type(task).__name__} has not")
    examples, train = rule.examples, task.train_clean
    own = lambda vector, buffers, number: train(Model(vector, buffers), number, examples).update  # noqa: E731
    return method.with_server(aggregator=FLTrust(examples, own))


def build_engine(
    spec: RunSpec, task: Task, states: Path, delayed: Path, workers: int, make: MakeEngine | None
) -> Engine:
    """Build the engine that the spec names, or that `make` makes, with the faults of the spec around it."""
    engine: Engine
    if make is not None:
        engine = make(spec, task, states)
    elif spec.engine == "flower-simulation":
        from fedsparq.lab.engines.flower import FlowerSimulation

        engine = FlowerSimulation(spec, task, states, workers)
    else:
        engine = LocalEngine(spec, task, states, workers)
    if spec.faults.any:
        return FaultyEngine(engine, spec.faults, task.layout, spec.clients, spec.seed, delayed)
    return engine


@dataclass(frozen=True)
class PrivacyAccountant:
    """The privacy of a run: the terms of its secure sums, and the epsilon that it has spent."""

    spec: RunSpec
    layout: Layout
    server: Server
    asked_in_vain: Callable[[int], int]
    """Returns how often a round was opened that is not among the first n."""

    def spent(self, next_round: bool = False, outside: bool = False) -> float | None:
        """Return epsilon so far, or with the next round and the clients that it asks; None where nothing is private.

        Under secure sums it is what clients that collude can learn; `outside`: those who see the models alone.
        """
        if not self.spec.privacy.wanted:
            return None
        spec, privacy, done = self.spec, self.spec.privacy, self.server.state.round + next_round
        in_vain = self.asked_in_vain(self.server.state.round)
        if spec.per_example is not None:
            return privacy.spent(spec.per_example.noise, spec.paid_rounds(done) + in_vain, spec.fraction)
        method = self.server.method
        if privacy.sampling == "poisson":  # a crash takes noise with it that nobody saw
            return privacy.spent(private_mean(method).noise, done, spec.fraction)
        asked = spec.chosen_clients(done) if next_round else ()
        counted = most_participations(self.server.state.aggregator, asked)
        if (terms := self.terms(1)) is not None:
            return privacy.spent_under_masks(counted + in_vain, method, self.layout, terms, outside)
        return privacy.spent(private_mean(method).noise, counted, spec.fraction)

    def exceeds_budget(self) -> bool:
        """Return whether the next round would spend more than the run may."""
        budget, after = self.spec.privacy.epsilon, self.spent(next_round=True)
        return budget is not None and after is not None and after > budget * (1 + 1e-9)

    def told(self) -> dict[str, Any]:
        """Return what a summary says of privacy: what was spent, of what, and which figures are no part of it."""
        privacy = self.spec.privacy
        if (epsilon := self.spent()) is None:
            return {}
        masked = {"epsilon_outside": self.spent(outside=True)} if privacy.secure_sums else {}
        about = {"epsilon": epsilon, "delta": privacy.delta, "promise": privacy.promise}
        return about | masked | {"not_private": list(NOT_PRIVATE)}

    def terms(self, round: int) -> Terms | None:
        """Return the terms of a round's secure sum; None where the server sees single replies."""
        spec = self.spec
        if not spec.privacy.secure_sums:
            return None
        return spec.privacy.terms(self.server.method, self.layout, spec.folder_name, round, spec.clients_a_round)


def participations(spec: RunSpec, client: int) -> int:
    """Return in how many rounds of a run a client takes part."""
    return sum(client in spec.chosen_clients(number) for number in range(1, spec.rounds + 1))
