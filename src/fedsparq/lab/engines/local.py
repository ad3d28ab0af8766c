"""The engine `local`: clients one after another in this process, or in several, with the same result bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

from fedsparq.errors import RunError
from fedsparq.federate.client import Answer
from fedsparq.federate.rounds import Delivery
from fedsparq.lab.engines.engine import Asked, Engine
from fedsparq.lab.engines.processes import Processes, Say
from fedsparq.lab.engines.worker import Worker, import_homes, worker_of
from fedsparq.lab.specs import RunSpec
from fedsparq.lab.tasks import Task
from fedsparq.lab.tasks.devices import prepare_process
from fedsparq.methods.registry import check_portable, find_recipe


class LocalEngine(Engine):
    """Clients on this machine."""

    def __init__(self, spec: RunSpec, task: Task, states: Path, workers: int = 1) -> None:
        self._worker = Worker(spec, task, states)
        self._exchanges = count()
        self._processes: Processes | None = None
        if min(workers, spec.clients) > 1:
            check_portable(spec.chosen_method(), "a worker process")
            self._processes = Processes(min(workers, spec.clients), _prepare, [find_recipe(spec.method).__module__])

    def __enter__(self) -> Engine:
        prepare_process()
        if self._processes is not None:
            self._processes.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._processes is not None:
            self._processes.close()

    def exchange(self, asked: Asked) -> Iterator[Delivery]:
        clients = sorted(asked.broadcasts)
        if self._processes is None:
            for client in clients:
                message = asked.broadcasts[client]
                yield Delivery(client, self._worker.answer(client, message, asked.saved, client in asked.dying))
        else:
            yield from self._exchange(asked, clients, self._processes)

    def _exchange(self, asked: Asked, clients: list[int], processes: Processes) -> Iterator[Delivery]:
        this, spec = next(self._exchanges), self._worker.spec.model_dump_json()
        for client in sorted(clients, key=lambda client: -self._worker.task.examples(client)):
            work = asked.broadcasts[client], asked.saved, client in asked.dying
            processes.submit((this, client), _work, spec, self._worker.states, client, *work)
        answers: dict[int, Answer] = {}
        for client in clients:
            while client not in answers:
                news = processes.news()
                exchange, sender = news.key
                if exchange != this:  # of a round that was given up
                    continue
                if news.kind == "died":
                    raise RunError("a worker process died (out of memory?); the run can be continued with --resume")
                if news.kind == "failed":
                    raise news.value
                answers[sender] = news.value
            yield Delivery(client, answers.pop(client))


def _prepare(homes: list[str]) -> None:
    prepare_process()
    import_homes(homes)


def _work(
    say: Say, spec: str, states: Path, client: int, message: bytes, saved: int, dies_before_saving: bool
) -> Answer:
    return worker_of(spec, states).answer(client, message, saved, dies_before_saving)
