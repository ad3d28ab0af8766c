"""The engine `local`: clients one after another in this process, or in several, with the same result bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedsparq.errors import RunError
from fedsparq.federate.client import Answer
from fedsparq.federate.rounds import Delivery
from fedsparq.lab.engines.engine import Asked, Engine, Worker, import_homes, worker_of
from fedsparq.lab.engines.pool import Emit, WorkerExitError, WorkerPool
from fedsparq.lab.specs import RunSpec
from fedsparq.lab.tasks import Task
from fedsparq.lab.tasks.devices import prepare_process
from fedsparq.methods.registry import check_portable, find_recipe


class LocalEngine(Engine):
    """Clients on this machine."""

    def __init__(self, spec: RunSpec, task: Task, states: Path, workers: int = 1) -> None:
        self._worker = Worker(spec, task, states)
        self._pool: WorkerPool | None = None
        if min(workers, spec.clients) > 1:
            check_portable(spec.chosen_method(), "a worker process")
            self._pool = WorkerPool(min(workers, spec.clients), _prepare, [find_recipe(spec.method).__module__])

    def __enter__(self) -> Engine:
        prepare_process()
        if self._pool is not None:
            self._pool.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.close()

    def exchange(self, asked: Asked) -> Iterator[Delivery]:
        clients = sorted(asked.broadcasts)
        if self._pool is None:
            for client in clients:
                message = asked.broadcasts[client]
                yield Delivery(client, self._worker.answer(client, message, asked.saved, client in asked.dying))
        else:
            yield from self._exchange(asked, clients, self._pool)

    def _exchange(self, asked: Asked, clients: list[int], pool: WorkerPool) -> Iterator[Delivery]:
        spec, futures = self._worker.spec.model_dump_json(), {}
        for client in sorted(clients, key=lambda client: -self._worker.task.examples(client)):
            work = asked.broadcasts[client], asked.saved, client in asked.dying
            futures[client] = pool.submit(_work, spec, self._worker.states, client, *work)
        try:
            for client in clients:
                yield Delivery(client, futures[client].result())
        except WorkerExitError as error:
            raise RunError("a worker process died (out of memory?); the run can be continued with --resume") from error
        finally:
            for future in futures.values():
                future.cancel()


def _prepare(homes: list[str]) -> None:
    prepare_process()
    import_homes(homes)


def _work(
    emit: Emit, spec: str, states: Path, client: int, message: bytes, saved: int, dies_before_saving: bool
) -> Answer:
    return worker_of(spec, states).answer(client, message, saved, dies_before_saving)
