"""Several threads for one call: compiled loops, zstd and numpy release the interpreter's lock."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

from fedsparq.errors import OptionError

A = TypeVar("A")
B = TypeVar("B")

MIN_PARALLEL_SIZE = 1 << 20
"""Fewer coordinates than this are not worth a second thread."""
_LIMIT = "FEDSPARQ_THREADS"
_here = threading.local()


def available_threads() -> int:
    """Return how many threads this process may use: its CPUs, or fewer by FEDSPARQ_THREADS or OMP_NUM_THREADS."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    said = (os.environ.get(name, "") for name in (_LIMIT, "OMP_NUM_THREADS"))
    return min([cpus, *(int(text) for text in said if text.isdecimal() and int(text))])


def only_one() -> None:
    """Make one thread the default of this process and those that it starts, as others share the CPUs."""
    os.environ[_LIMIT] = "1"


def resolve_threads(threads: int | None, coordinates: int = MIN_PARALLEL_SIZE) -> int:
    """Return how many threads to use, given what the caller asked for (None: all available).

    It is one in a worker thread, and for few coordinates.
    """
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise OptionError(f"threads={threads!r}: it must be a positive integer, or None for all that are available")
    if coordinates < MIN_PARALLEL_SIZE or getattr(_here, "is_worker", False):
        return 1
    return available_threads() if threads is None else threads


def imap(function: Callable[[A], B], items: Iterable[A], threads: int) -> Iterator[B]:
    """Map on several threads, in order: at most two calls per thread are begun before the first result is taken."""
    if threads == 1:
        yield from map(function, items)
        return
    pool, begun = _pool(os.getpid(), threads), deque[Future[B]]()
    try:
        for item in items:
            begun.append(pool.submit(function, item))
            if len(begun) == 2 * threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        _end(begun)


def _end(futures: Iterable[Future[B]]) -> None:
    """Wait for calls that run, so that none works on memory that its owner takes for free."""
    waiting = [future for future in futures if not future.cancel()]
    for future in waiting:
        future.exception()


@lru_cache(maxsize=4)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Keep a pool from call to call; a forked process makes its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="fedsparq", initializer=_begin)


def _begin() -> None:
    _here.is_worker = True
