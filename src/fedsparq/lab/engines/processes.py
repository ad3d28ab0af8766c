"""Other processes that do calls for this one. They end with it, and an interrupt at the keyboard is not theirs."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any, Literal

from fedsparq.errors import FedSparQError, RunError
from fedsparq.threads import only_one

Kind = Literal["said", "done", "failed", "died"]
Say = Callable[[Any], None]
"""How a call tells something before it is done."""

_SPAWN = multiprocessing.get_context("spawn")
_ENDS_WITHIN = 2.0


@dataclass(frozen=True)
class News:
    """Of one call: what it `said`, what it gave when `done`, the error by which it `failed`, or how its process
    `died`, as an exit code."""

    key: Any
    kind: Kind
    value: Any


class Processes:
    """Up to so many processes; each is started when there is work for it, and again after it died.

    A thread attends to each process, so that the next call goes out while this one is busy. Leaving the context kills
    them: nothing is waited for that might not come.
    """

    def __init__(self, count: int, prepare: Callable[..., None], *arguments: Any) -> None:
        self._prepare = prepare, arguments
        self._calls: SimpleQueue[tuple[Any, Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._news: SimpleQueue[News] = SimpleQueue()
        self._running: set[BaseProcess] = set()
        self._closed = False
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._attend, daemon=True) for _ in range(count)]

    def __enter__(self) -> Processes:
        resource_tracker.ensure_running()  # it lets interrupts through when it starts, which must not be later
        atexit.register(self.close)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill them all."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for process in running:
            process.kill()
        for _ in self._threads:
            self._calls.put(None)
        for process in running:
            process.join(_ENDS_WITHIN)
        atexit.unregister(self.close)

    @property
    def pids(self) -> list[int]:
        with self._lock:
            return [process.pid for process in self._running if process.pid is not None]

    def submit(self, key: Any, function: Callable[..., Any], *arguments: Any) -> None:
        """Have ``function(say, *arguments)`` called in one of them; `key` names the call in the news."""
        self._calls.put((key, function, arguments))

    def news(self) -> News:
        """Wait for what is new of any call."""
        return self._news.get()

    def _attend(self) -> None:
        process: BaseProcess | None = None
        while (call := self._calls.get()) is not None:
            key, function, arguments = call
            try:
                if process is None:
                    process, connection = self._start()
                connection.send((function, arguments))
                while True:
                    kind, value = connection.recv()
                    self._news.put(News(key, kind, value))
                    if kind != "said":
                        break
            except (EOFError, OSError):
                self._news.put(News(key, "died", self._ended(process)))
                process = None
            except Exception as error:
                self._news.put(News(key, "failed", error))

    def _start(self) -> tuple[BaseProcess, Connection]:
        here, there = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_serve, args=(there, *self._prepare))
        with self._lock:
            if self._closed:
                raise EOFError
            with _interrupts_held_back():
                process.start()
            self._running.add(process)
        there.close()
        return process, here

    def _ended(self, process: BaseProcess | None) -> int | None:
        if process is None:
            return None
        process.join(_ENDS_WITHIN)
        with self._lock:
            self._running.discard(process)
        return process.exitcode


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A process started in here never sees an interrupt; this thread sees it afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, prepare: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """What such a process does: calls, until its parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    only_one()

    def send(kind: Kind, value: Any) -> None:
        try:
            connection.send((kind, value))
        except ConnectionError:  # the parent is gone
            os._exit(1)

    unprepared: BaseException | None = None
    try:
        prepare(*arguments)
    except Exception as error:
        unprepared = error
    while True:
        try:
            function, given = connection.recv()
        except (EOFError, OSError):  # also in the middle of a message, if the parent was killed while it wrote
            return
        try:
            if unprepared is not None:
                raise unprepared
            send("done", function(partial(send, "said"), *given))
        except Exception as error:
            send("failed", _portable(error))


def _portable(error: Exception) -> Exception:
    """The error as another process can read it; one that nobody foresaw says where it was raised."""
    if not isinstance(error, FedSparQError):
        error.add_note(f"In another process:\n{''.join(traceback.format_exception(error))}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunError(f"{type(error).__name__}: {error}")
    return error


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
