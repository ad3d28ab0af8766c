"""Worker processes that run calls for this one. They end with it, and an interrupt at the keyboard is not theirs."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

from fedsparq.errors import FedSparQError, RunError
from fedsparq.threads import only_one

Emit = Callable[[Any], None]
"""Passes on what a call reports before it is done."""

_SPAWN = multiprocessing.get_context("spawn")
_JOIN_SECONDS = 2.0


class WorkerExitError(RunError):
    """A worker process ended in the middle of a call."""

    def __init__(self, code: int | None) -> None:
        how = f"was ended by {signal.Signals(-code).name} (out of memory?)" if code and code < 0 else f"exited: {code}"
        super().__init__(f"its process {how}")
        self.code = code


class WorkerPool:
    """At most `count` processes; each is owned by a thread, and started when there is work for it.

    Leaving the context kills them: nothing is waited for that might not come.
    """

    def __init__(self, count: int, initializer: Callable[..., None], *arguments: Any) -> None:
        self._initializer = initializer, arguments
        self._threads = ThreadPoolExecutor(count)
        self._own = threading.local()
        self._running: set[BaseProcess] = set()
        self._closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> WorkerPool:
        resource_tracker.ensure_running()  # it lets interrupts through when it starts, which must not be later
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.kill()
        for process in running:
            process.join(_JOIN_SECONDS)

    @property
    def pids(self) -> list[int]:
        with self._lock:
            return [process.pid for process in self._running if process.pid is not None]

    def submit(self, function: Callable[..., Any], *arguments: Any, emit: Emit = lambda value: None) -> Future[Any]:
        """Call ``function(emit, *arguments)`` in one of the processes; a thread passes what it emits to `emit`."""
        return self._threads.submit(self._call, function, arguments, emit)

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...], emit: Emit) -> Any:
        if getattr(self._own, "process", None) is None:
            self._start()
        self._send((function, arguments))
        while (reply := self._receive())[0] == "progress":
            emit(reply[1])
        kind, value = reply
        if kind == "failed":
            raise value
        return value

    def _send(self, call: tuple[Any, ...]) -> None:
        try:
            self._own.connection.send(call)
        except ConnectionError:
            self._exited()

    def _receive(self) -> tuple[str, Any]:
        try:
            reply: tuple[str, Any] = self._own.connection.recv()
        except (EOFError, ConnectionError):
            self._exited()
        return reply

    def _exited(self) -> NoReturn:
        process, self._own.process = self._own.process, None
        process.join(_JOIN_SECONDS)
        with self._lock:
            self._running.discard(process)
        raise WorkerExitError(process.exitcode) from None

    def _start(self) -> None:
        here, there = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_serve, args=(there, *self._initializer))
        with self._lock:
            if self._closed:
                raise WorkerExitError(None)
            # a process started in here never sees an interrupt; this thread sees it afterwards
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._running.add(process)
        there.close()
        self._own.process, self._own.connection = process, here


def _serve(connection: Connection, initializer: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Run calls until the parent closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    only_one()

    def send(kind: str, value: Any) -> None:
        try:
            connection.send((kind, value))
        except ConnectionError:  # the parent is gone
            os._exit(1)

    failure: Exception | None = None
    try:
        initializer(*arguments)
    except Exception as error:
        failure = error
    while True:
        try:
            function, given = connection.recv()
        except (EOFError, OSError):  # also in the middle of a message, if the parent was killed while it wrote
            return
        try:
            if failure is not None:
                raise failure
            send("done", function(lambda value: send("progress", value), *given))
        except Exception as error:
            send("failed", _picklable(error))


def _picklable(error: Exception) -> Exception:
    """Return the error as another process can read it; an unexpected one says where it was raised."""
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
