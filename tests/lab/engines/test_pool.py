"""Worker processes: what they emit, how they fail, and that none outlives its use."""

import multiprocessing
import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from fedsparq.errors import OptionError
from fedsparq.lab.engines.pool import WorkerExitError, WorkerPool, _serve


def prepare(home: str) -> None:
    os.environ["TEST_HOME"] = home


def unprepared() -> None:
    raise OptionError("there is nothing to work with")


def double(emit: Callable[[Any], None], number: int) -> tuple[int, str]:
    emit(f"doubling {number}")
    return 2 * number, os.environ["TEST_HOME"]


def refuse(emit: Callable[[Any], None], text: str) -> None:
    raise OptionError(text)


class OddError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raise_odd(emit: Callable[[Any], None]) -> None:
    raise OddError(1, 2)


def lose_connection(emit: Callable[[Any], None]) -> None:
    raise ConnectionResetError("another machine")


def die(emit: Callable[[Any], None]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait(emit: Callable[[Any], None]) -> None:
    emit(os.getpid())
    time.sleep(600)


def test_calls_are_answered() -> None:
    emitted: SimpleQueue[Any] = SimpleQueue()
    with WorkerPool(2, prepare, "here") as pool:
        calls = [pool.submit(double, number, emit=emitted.put) for number in range(5)]
        assert [call.result() for call in calls] == [(2 * number, "here") for number in range(5)]
    assert {emitted.get() for _ in range(5)} == {f"doubling {number}" for number in range(5)}


def test_failures_come_back_and_the_process_goes_on() -> None:
    with WorkerPool(1, prepare, "here") as pool:
        calls = [pool.submit(refuse, "not like this"), pool.submit(raise_odd), pool.submit(lose_connection)]
        with pytest.raises(OptionError, match="not like this"):
            calls[0].result()
        with pytest.raises(Exception, match="OddError: 1 and 2"):
            calls[1].result()
        with pytest.raises(ConnectionResetError):
            calls[2].result()
        (before,) = pool.pids
        dead, done = pool.submit(die), pool.submit(double, 4)
        with pytest.raises(WorkerExitError, match="SIGKILL") as caught:
            dead.result()
        assert caught.value.code == -signal.SIGKILL
        assert done.result() == (8, "here")
        assert pool.pids != [before]


def test_what_cannot_be_prepared_is_an_error_of_each_call() -> None:
    with WorkerPool(1, unprepared) as pool, pytest.raises(OptionError, match="nothing to work with"):
        pool.submit(double, 1).result()


def test_none_outlives_its_use() -> None:
    begun, emitted = time.monotonic(), SimpleQueue[Any]()
    with WorkerPool(1, prepare, "here") as pool:
        call = pool.submit(wait, emit=emitted.put)
        pid = emitted.get()
        assert pool.pids == [pid]
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(WorkerExitError):
        call.result()
    assert time.monotonic() - begun < 60


def test_a_parent_that_died_in_the_middle_of_a_message_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(there, prepare, ("here",)))
    process.start()
    there.close()
    os.write(here.fileno(), struct.pack("!i", 1000) + b"the beginning")
    here.close()
    process.join(60)
    assert (process.exitcode, capfd.readouterr().err) == (0, "")
