"""One run from its spec to its summary, on any engine, interrupted and resumed as often as need be."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsparq.engines.desk import Task
from fedsparq.engines.faults import FaultyEngine, ServerCrashError
from fedsparq.engines.local import Delivery, Engine, LocalEngine
from fedsparq.errors import RunError
from fedsparq.experiments.folder import RunFolder
from fedsparq.experiments.results import Round
from fedsparq.experiments.spec import RunSpec
from fedsparq.federate.checkpoint import load_server, save_server
from fedsparq.federate.downlink import Downlink
from fedsparq.federate.server import RoundOutcome, Server
from fedsparq.federate.store import DiskStore
from fedsparq.learn.partition import class_counts

Watch = Callable[[Round], None]
"""Called after each round, and once for each round that a resumed run has behind it."""

Carrier = Callable[[Task, Path], Engine]
"""Makes an engine for a task, with a folder for the clients' states."""


def run(
    spec: RunSpec,
    out: Path,
    *,
    resume: bool = False,
    workers: int = 1,
    checkpoint_every: int = 1,
    watch: Watch = lambda record: None,
    carrier: Carrier | None = None,
) -> dict[str, Any]:
    """Run an experiment into a folder; returns its summary. A finished one is not run again.

    `carrier` makes an engine other than those that a spec can name.
    """
    folder = RunFolder(out)
    if folder.started:
        folder.check_spec(spec)
        if folder.finished:
            return folder.summary()
        if not resume:
            raise RunError(f"{out} holds a run that is not finished; add --resume to go on, or choose another --out")
    task = Task(spec)
    method = spec.chosen_method()
    server = Server.start(
        task.layout,
        method,
        task.take(),
        rules=spec.server.rules(spec.acknowledge),
        downlink=Downlink(task.layout, spec.chosen_downlink(), spec.seed, halve_first=True),
        own_methods=spec.client_methods(lambda client: rounds_of(spec, client)),
    )
    if not folder.checkpoint.exists():
        counts = class_counts(task.dataset.train.labels, task.parts, len(task.dataset.classes))
        folder.start(spec)
        folder.write_partition(task.dataset.classes, counts)
        save_server(server, folder.checkpoint)
    with _engine(task, folder, workers, carrier) as engine:
        rounds = _Rounds(spec, task, server, engine, folder, checkpoint_every).play(watch)
    summary = summarize(spec, task, rounds)
    folder.finish(summary, server.state.model, task.layout)
    return summary


def _engine(task: Task, folder: RunFolder, workers: int, carrier: Carrier | None) -> AbstractContextManager[Engine]:
    engine: Engine
    if carrier is not None:
        engine = carrier(task, folder.client_states)
    elif task.spec.engine == "flower-simulation":
        from fedsparq.engines.flower_simulation import FlowerSimulation

        engine = FlowerSimulation(task, folder.client_states, workers)
    else:
        engine = LocalEngine(task, folder.client_states, workers)
    if task.spec.faults.any:
        spec = task.spec
        return FaultyEngine(engine, spec.faults, task.layout, spec.clients, spec.seed, folder.transit)
    return engine


@dataclass
class _Rounds:
    """The rounds of a run under way."""

    spec: RunSpec
    task: Task
    server: Server
    engine: Engine
    folder: RunFolder
    checkpoint_every: int

    def play(self, watch: Watch) -> list[Round]:
        rounds = self._go_back()
        saved = len(rounds)
        for record in rounds:
            watch(record)
        while self.server.state.round < self.spec.rounds:
            try:
                record = self._play_one(saved)
            except ServerCrashError:
                rounds = self._go_back(answered=1)
                continue
            rounds.append(record)
            self.folder.append(record)
            if record.round % self.checkpoint_every == 0 or record.round == self.spec.rounds:
                save_server(self.server, self.folder.checkpoint)
                saved = record.round
            watch(record)
        return rounds

    def _go_back(self, answered: int = 0) -> list[Round]:
        """To the last checkpoint: server, clients and records. Clients keep what they `answered` since, so many rounds:
        where only the server died, they have their replies to the round that it opens again."""
        load_server(self.server, self.folder.checkpoint)
        saved = self.server.state.round
        DiskStore(self.folder.client_states).go_back(saved + answered)
        return self.folder.rounds(saved)

    def _play_one(self, saved: int) -> Round:
        number = self.server.state.round + 1
        clients = chosen_clients(self.spec, number)
        self.server.open_round(clients)
        requests = {client: self.server.broadcast(client) for client in clients}
        traffic = _Traffic(sum(map(len, requests.values())))
        aggregate = 0.0
        for delivery in self.engine.exchange(number, requests, saved):
            start = time.perf_counter()
            self._deliver(delivery, traffic, number, saved)
            aggregate += time.perf_counter() - start
        start = time.perf_counter()
        outcome = self.server.close_round()
        closed = time.perf_counter()
        accuracy, loss = self.task.evaluate(self.server.state.model)
        seconds = {
            "train": traffic.train_seconds,
            "compress": traffic.compress_seconds,
            "aggregate": aggregate + closed - start,
            "evaluate": time.perf_counter() - closed,
        }
        return _record(outcome, len(clients), traffic, accuracy, loss, seconds)

    def _deliver(self, delivery: Delivery, traffic: _Traffic, number: int, saved: int) -> None:
        """Hand a client's answer to the server; a client that asks for the whole model is asked again, once."""
        traffic.add(delivery)
        for remark in delivery.answer.remarks:
            self.server.note(delivery.client, remark)
        if delivery.answer.message is None:
            return
        seconds = delivery.answer.train_seconds + delivery.answer.compress_seconds
        verdict = self.server.receive(delivery.client, delivery.answer.message, seconds)
        if verdict.resend:
            request = {delivery.client: self.server.broadcast(delivery.client)}
            traffic.down += len(request[delivery.client])
            for again in self.engine.exchange(number, request, saved):
                self._deliver(again, traffic, number, saved)


@dataclass
class _Traffic:
    """What a round sent, and how long the clients worked."""

    down: int
    up: int = 0
    train_seconds: float = 0.0
    compress_seconds: float = 0.0

    def add(self, delivery: Delivery) -> None:
        self.up += delivery.answer.sent
        self.train_seconds += delivery.answer.train_seconds
        self.compress_seconds += delivery.answer.compress_seconds


def chosen_clients(spec: RunSpec, number: int) -> list[int]:
    """The clients that take part in a round."""
    count = spec.clients_a_round
    if count == spec.clients:
        return list(range(spec.clients))
    drawn = np.random.default_rng([spec.seed, number, 6]).choice(spec.clients, count, replace=False)
    return sorted(int(client) for client in drawn)


def rounds_of(spec: RunSpec, client: int) -> int:
    """In how many rounds of a run a client takes part."""
    return sum(client in chosen_clients(spec, number) for number in range(1, spec.rounds + 1))


def _record(
    outcome: RoundOutcome, asked: int, traffic: _Traffic, accuracy: float, loss: float, seconds: Mapping[str, float]
) -> Round:
    events = [asdict(event) for event in outcome.events]
    if outcome.unlisted:
        events.append({"client": -1, "round": outcome.round, "reason": f"{outcome.unlisted} more events"})
    return Round(
        round=outcome.round,
        accuracy=accuracy,
        loss=loss,
        upload_bytes=traffic.up / asked,
        download_bytes=traffic.down / asked,
        upload_bytes_paper=outcome.paper_bytes,
        kept=outcome.kept,
        kept_layers=outcome.kept_layers,
        clients=len(outcome.counted),
        events=events,
        seconds=seconds,
    )


def summarize(spec: RunSpec, task: Task, rounds: list[Round]) -> dict[str, Any]:
    """The figures of a whole run; bytes are sums over the rounds of the means per client."""
    last = rounds[-1]
    return {
        "method": spec.method,
        "label": spec.label,
        "options": dict(spec.chosen_method().options),
        "dataset": spec.dataset,
        "model": spec.model,
        "partition": spec.partition_label,
        "seed": spec.seed,
        "rounds": len(rounds),
        "clients": spec.clients,
        "accuracy": last.accuracy,
        "loss": last.loss,
        "robust1": last.accuracy - last.loss,
        "robust2": last.accuracy / (last.loss + 1e-8),
        "upload_bytes": math.fsum(record.upload_bytes for record in rounds),
        "download_bytes": math.fsum(record.download_bytes for record in rounds),
        "upload_bytes_paper": math.fsum(record.upload_bytes_paper for record in rounds),
        "kept": math.fsum(record.kept for record in rounds) / len(rounds),
        "parameters": task.layout.size,
        "train_examples": len(task.dataset.train.labels),
        "note": spec.note,
        "seconds": {part: math.fsum(record.seconds[part] for record in rounds) for part in last.seconds},
    }
