"""Processes that do calls for this one: what they say, how they fail, and that none outlives its use."""

import multiprocessing
import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsparq.errors import OptionError
from fedsparq.lab.engines.processes import Processes, _serve


def prepare(home: str) -> None:
    os.environ["TEST_HOME"] = home


def unprepared() -> None:
    raise OptionError("there is nothing to work with")


def double(say: Callable[[Any], None], number: int) -> tuple[int, str]:
    say(f"doubling {number}")
    return 2 * number, os.environ["TEST_HOME"]


def refuse(say: Callable[[Any], None], text: str) -> None:
    raise OptionError(text)


class OddError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raise_odd(say: Callable[[Any], None]) -> None:
    raise OddError(1, 2)


def die(say: Callable[[Any], None]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait(say: Callable[[Any], None]) -> None:
    say(os.getpid())
    time.sleep(600)


def test_calls_are_answered() -> None:
    with Processes(2, prepare, "here") as processes:
        for number in range(5):
            processes.submit(number, double, number)
        news = [processes.news() for _ in range(10)]
    assert {each.key: each.value for each in news if each.kind == "said"} == {n: f"doubling {n}" for n in range(5)}
    assert {each.key: each.value for each in news if each.kind == "done"} == {n: (2 * n, "here") for n in range(5)}


def test_failures_come_back_and_the_process_goes_on() -> None:
    with Processes(1, prepare, "here") as processes:
        processes.submit("a", refuse, "not like this")
        processes.submit("b", raise_odd)
        processes.submit("c", die)
        processes.submit("d", double, 4)
        failed, odd, died, said, done = (processes.news() for _ in range(5))
    assert (failed.kind, type(failed.value), str(failed.value)) == ("failed", OptionError, "not like this")
    assert odd.kind == "failed"
    assert "OddError: 1 and 2" in str(odd.value)
    assert (died.kind, died.value) == ("died", -signal.SIGKILL)
    assert (said.kind, done.kind, done.value) == ("said", "done", (8, "here"))


def test_what_cannot_be_prepared_is_an_error_of_each_call() -> None:
    with Processes(1, unprepared) as processes:
        processes.submit("a", double, 1)
        with pytest.raises(OptionError, match="nothing to work with"):
            raise processes.news().value


def test_none_outlives_its_use() -> None:
    begun = time.monotonic()
    with Processes(1, prepare, "here") as processes:
        processes.submit("a", wait)
        pid = processes.news().value
        assert processes.pids == [pid]
    assert not Path(f"/proc/{pid}").exists()
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
