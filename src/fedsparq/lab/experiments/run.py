"""One run from its spec to its summary, on any engine, interrupted and resumed as often as need be."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsparq.errors import OptionError, RunError
from fedsparq.federate.checkpoint import load_server, save_server
from fedsparq.federate.masked import forget_sums, play_masked
from fedsparq.federate.rounds import Delivery, Traffic, play_round
from fedsparq.federate.server import RoundOutcome, Server
from fedsparq.federate.store import DiskStore
from fedsparq.lab.engines.engine import Asked, Engine, MakeEngine
from fedsparq.lab.engines.faults import ServerCrashError
from fedsparq.lab.experiments.callbacks import Callback, Watch, closing
from fedsparq.lab.experiments.setup import PAPER_BYTES, PrivacyAccountant, build, build_engine
from fedsparq.lab.folder import RunFolder
from fedsparq.lab.lock import locked
from fedsparq.lab.records import Round
from fedsparq.lab.specs import RunSpec
from fedsparq.lab.tasks import Task, class_counts, train_examples
from fedsparq.lab.tasks.task import Poisonable

_LOST = "client state lost: "
"""How the event begins that says so."""


def run(
    spec: RunSpec,
    out: Path,
    *,
    resume: bool = False,
    workers: int = 1,
    checkpoint_every: int = 1,
    callbacks: Sequence[Callback | Watch] = (),
    engine: MakeEngine | None = None,
) -> dict[str, Any]:
    """Run an experiment into a folder; returns its summary. A finished one is not run again.

    More rounds than a run has are added to it. One process at a time may work in a folder.
    `engine` makes an engine other than those that a spec can name.
    """
    folder = RunFolder(out)
    with closing(callbacks) as told:
        if folder.holds(spec):
            return replay(folder, spec, told)
        with locked(out):
            if folder.holds(spec):
                return replay(folder, spec, told)
            if folder.begun:
                folder.reopen(spec, resume)
            try:
                return _run(spec, folder, workers, checkpoint_every, told, engine)
            except BaseException:
                if not folder.begun:
                    folder.clear()
                raise


def replay(folder: RunFolder, spec: RunSpec, callbacks: Callback) -> dict[str, Any]:
    """Report a finished run to callbacks as if it had just ended; returns its summary."""
    summary = folder.summary()
    callbacks.start(spec, folder.path, folder.rounds(spec.rounds))
    callbacks.end(summary)
    return summary


def _run(
    spec: RunSpec, folder: RunFolder, workers: int, checkpoint_every: int, told: Callback, engine: MakeEngine | None
) -> dict[str, Any]:
    built = build(spec)
    task, server = built.task, built.server
    if not (folder.begun and folder.checkpoint.exists()):
        folder.start(spec, describe(spec, task), class_counts(task))
        save_server(server, folder.checkpoint)
    with build_engine(spec, task, folder.client_states, folder.delayed, workers, engine) as carrying:
        playing = _Rounds(spec, task, server, carrying, folder, checkpoint_every, told)
        rounds = playing.play(own_states=engine is None)
    if not any(record.clients for record in rounds):
        raise RunError(f"no reply counted in any of {len(rounds)} rounds, so nothing was learned: {_why(rounds[-1])}")
    summary = summarize(spec, task, rounds) | playing.accountant.told()
    folder.finish(summary, server.state.model, task.layout)
    told.end(summary)
    return summary


@dataclass
class _Rounds:
    """The rounds of a run under way."""

    spec: RunSpec
    task: Task
    server: Server
    engine: Engine
    folder: RunFolder
    checkpoint_every: int
    told: Callback

    def __post_init__(self) -> None:
        self.offenders: set[int] = set()
        """Clients that have spoiled a secure sum; until the run is resumed."""
        self.accountant = PrivacyAccountant(self.spec, self.task.layout, self.server, self.folder.asked_in_vain)

    def play(self, own_states: bool) -> list[Round]:
        """The rounds that are missing; all rounds of the run. `own_states`: the clients' are in its folder."""
        rounds = self._go_back()
        saved, warned = len(rounds), False
        self.told.start(self.spec, self.folder.path, rounds)
        if own_states and rounds:
            self._look_for_states()

        def save(note: str = "") -> None:
            if own_states:
                os.sync()  # the clients' states, before the round counts
            save_server(self.server, self.folder.checkpoint, note)

        while self.server.state.round < self.spec.rounds:
            if self.accountant.exceeds_budget():
                if not rounds:
                    raise RunError(
                        f"{self.folder.path}: its clients answered {self.folder.asked_in_vain(0)} times in rounds that "
                        f"a crash ended, and nothing is left of epsilon = {self.spec.privacy.epsilon}; choose another "
                        "--out, which is another release"
                    )
                self.told.warn(f"stopped after round {len(rounds)}: one more would spend more than the run may")
                break
            try:
                record = self._play_one(saved)
            except ServerCrashError:
                rounds = self._go_back(answered=1)
                continue
            rounds.append(record)
            if self.spec.privacy.wanted:
                # what is released must be safe first: noise drawn a second time would be a second release
                save(record.to_json())
                saved = record.round
            self.folder.append(record)
            if saved < record.round and (record.round % self.checkpoint_every == 0 or record.round == self.spec.rounds):
                save()
                saved = record.round
            self.told.round(record)
            if not record.clients and not warned:
                warned = True
                self.told.warn(f"in round {record.round} no reply counted: {_why(record)}")
        return rounds

    def _look_for_states(self) -> None:
        """Say of which clients the state is gone or damaged. They go on without what they had not sent yet."""
        store = DiskStore(self.folder.client_states)
        for client, last in sorted(self.server.state.counted.items()):
            loaded = store.load(client, self.task.layout)
            if loaded.state is None or loaded.state.round < last.round:
                reason = loaded.remark or f"there is none of round {last.round} or later"
                self.server.note(client, f"{_LOST}{reason}")
                self.told.warn(f"client {client}: its state is lost ({reason}); it goes on without its residual")

    def _go_back(self, answered: int = 0) -> list[Round]:
        """To the last checkpoint: server, clients and records. Clients keep what they `answered` since, so many rounds:
        where only the server died, they have their replies to the round that it opens again."""
        note = load_server(self.server, self.folder.checkpoint)
        saved = self.server.state.round
        if note:
            self.folder.complete(note, saved)
        DiskStore(self.folder.client_states).go_back(saved + answered)
        if not answered:
            forget_sums(self.folder.client_states)
        return self.folder.cut(saved)

    def _play_one(self, saved: int) -> Round:
        number, traffic = self.server.state.round + 1, Traffic()
        clients = self.spec.chosen_clients(number)
        if self.spec.privacy.wanted:
            self.folder.ask(number)

        def exchange(requests: Mapping[int, bytes]) -> Iterable[Delivery]:
            return self.engine.exchange(Asked(number, requests, saved))

        def ask(asked: Sequence[int]) -> Iterable[Delivery]:
            requests = {client: self.server.broadcast(client) for client in asked}
            traffic.down += sum(map(len, requests.values()))
            return exchange(requests)

        terms = self.accountant.terms(number)
        if terms is None:
            outcome = play_round(self.server, clients, ask, traffic)
        else:
            outcome = play_masked(self.server, terms, clients, exchange, traffic, self.offenders)
        if self.spec.privacy.wanted and traffic.metrics:
            raise OptionError(
                f"the task's clients measure {', '.join(traffic.metrics)} on their own data and send it in clear, and "
                "no noise covers that: leave Trained(metrics=...) out of a private run"
            )
        closed = time.perf_counter()
        metrics = self.task.evaluate(self.server.state.model)
        if "backdoor" in self.spec.faults.hostile_kinds and isinstance(self.task, Poisonable):
            metrics["backdoor_success"] = self.task.backdoor_success(self.server.state.model)
        traffic.seconds["evaluate"] = time.perf_counter() - closed
        return _record(outcome, len(clients), traffic, metrics, self.accountant.spent())


def _mean(values: Sequence[float]) -> float:
    """Return the mean of what nodes measured; NaN where they say what has no sum."""
    try:
        return math.fsum(values) / len(values)
    except (ValueError, OverflowError):
        return math.nan


def _record(
    outcome: RoundOutcome, asked: int, traffic: Traffic, metrics: dict[str, float], epsilon: float | None
) -> Round:
    events = [asdict(event) for event in outcome.events]
    if outcome.unlisted:
        events.append({"client": -1, "round": outcome.round, "reason": f"{outcome.unlisted} more events"})
    return Round(
        round=outcome.round,
        accuracy=metrics.get("accuracy", math.nan),
        loss=metrics.get("loss", math.nan),
        metrics={name: value for name, value in metrics.items() if name not in ("accuracy", "loss")}
        | {name: _mean(values) for name, values in traffic.metrics.items()}
        | outcome.recorded,
        upload_bytes=traffic.up / max(1, asked),
        download_bytes=traffic.down / max(1, asked),
        upload_bytes_paper=outcome.measures.get(PAPER_BYTES, 0.0),
        kept=outcome.kept,
        kept_layers=outcome.kept_layers,
        clients=len(outcome.counted),
        events=events,
        seconds=traffic.seconds,
        epsilon=epsilon,
    )


def describe(spec: RunSpec, task: Task) -> dict[str, Any]:
    """Return what a run is, before its results."""
    return {
        "method": spec.method,
        "label": spec.label,
        "options": dict(spec.chosen_method().options),
        "downlink": spec.downlink_kind,
        "dataset": spec.dataset,
        "model": spec.model,
        "partition": spec.partition_label,
        "seed": spec.seed,
        "clients": spec.clients,
        "parameters": task.layout.size,
        "train_examples": train_examples(task, spec.clients),
        "note": spec.note,
    }


def summarize(spec: RunSpec, task: Task, rounds: list[Round]) -> dict[str, Any]:
    """The figures of a whole run; bytes are sums over the rounds of the means per client.

    What the task does not measure is not in it.
    """
    last = rounds[-1]
    sums = ("upload_bytes", "download_bytes", PAPER_BYTES)
    return {
        **describe(spec, task),
        "rounds": len(rounds),
        **_finite(accuracy=last.accuracy, loss=last.loss),
        "metrics": _finite(**last.metrics),
        **_finite(robust1=last.accuracy - last.loss, robust2=last.accuracy / (last.loss + 1e-8)),
        **{name: math.fsum(getattr(record, name) for record in rounds) for name in sums},
        "kept": math.fsum(record.kept for record in rounds) / len(rounds),
        "seconds": {part: math.fsum(record.seconds[part] for record in rounds) for part in last.seconds},
        **({"lost_states": lost} if (lost := _lost_states(rounds)) else {}),
    }


def _why(record: Round) -> str:
    """The last that was said of a client in a round in which no reply counted."""
    reasons = [str(event["reason"]) for event in record.events if event["client"] >= 0]
    return reasons[-1] if reasons else "none came"


def _finite(**figures: float) -> dict[str, float]:
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _lost_states(rounds: Sequence[Round]) -> list[str]:
    """Where a client's state was gone when the run was resumed: other bytes than those of an undisturbed run."""
    events = [event for record in rounds for event in record.events if event["reason"].startswith(_LOST)]
    return [
        f"client {event['client']}, after round {event['round']}: {event['reason'][len(_LOST) :]}" for event in events
    ]
