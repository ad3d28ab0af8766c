"""The engine `local`: clients one after another in this process, or in several, with the same result bit for bit."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Protocol

import torch

from fedsparq.engines.desk import Desk, Task
from fedsparq.errors import RunError
from fedsparq.experiments.spec import RunSpec
from fedsparq.federate.client import Answer


@dataclass(frozen=True)
class Delivery:
    """What came back from a client: an answer, or silence."""

    client: int
    answer: Answer


class Engine(Protocol):
    """Carries a round's messages to the clients and their answers back."""

    def exchange(
        self, number: int, requests: Mapping[int, bytes], saved: int, dying: frozenset[int] = frozenset()
    ) -> Iterator[Delivery]:
        """Answers of a round in the order of the clients' numbers; `saved` is the round of the last checkpoint.

        `dying` clients crash before they save their state.
        """

    def __enter__(self) -> Engine: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LocalEngine:
    """Clients on this machine."""

    def __init__(self, task: Task, states: Path, workers: int = 1) -> None:
        self._desk = Desk(task, states)
        self._workers = min(workers, task.spec.clients)
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> LocalEngine:
        torch.set_num_threads(1)
        if self._workers > 1:
            self._pool = ProcessPoolExecutor(
                self._workers,
                multiprocessing.get_context("spawn"),
                initializer=_start_worker,
                initargs=(self._desk.task.spec.model_dump_json(), str(self._desk.states)),
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            processes = list((self._pool._processes or {}).values()) if error is not None else []
            for process in processes:
                process.kill()
            self._pool.shutdown(wait=True, cancel_futures=True)

    def exchange(
        self, number: int, requests: Mapping[int, bytes], saved: int, dying: frozenset[int] = frozenset()
    ) -> Iterator[Delivery]:
        clients = sorted(requests)
        if self._pool is None:
            for client in clients:
                yield Delivery(client, self._desk.answer(client, requests[client], saved, client in dying))
            return
        sizes = self._desk.task.parts
        largest_first = sorted(clients, key=lambda client: -len(sizes[client]))
        try:
            pending = {
                client: self._pool.submit(_work, client, requests[client], saved, client in dying)
                for client in largest_first
            }
            for client in clients:
                yield Delivery(client, pending[client].result())
        except BrokenProcessPool:
            raise RunError("a worker process died (out of memory?); the run can be continued with --resume") from None


_desk: Desk | None = None
"""The desk of a worker process: set once when it starts."""


def _start_worker(spec: str, states: str) -> None:
    global _desk
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _desk = Desk(Task(RunSpec.model_validate_json(spec)), Path(states))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _work(client: int, message: bytes, saved: int, dies_before_saving: bool) -> Answer:
    if _desk is None:
        raise RunError("this process was not started as a worker")
    return _desk.answer(client, message, saved, dies_before_saving)
