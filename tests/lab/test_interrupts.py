"""Ctrl-C: a command ends within five seconds, whatever it is doing, and says how to go on."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsparq.cli.interrupt import advice

LONGEST = 5.0
RESUME = "fedsparq: interrupted; the same command with --resume goes on\n"
SAME = "fedsparq: interrupted; the same command goes on\n"
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def interrupt(words: list[str], ready: Callable[[int], bool], expected: str) -> float:
    """Interrupt a command and its processes, as a terminal does, when it is `ready`; how long it took to end."""
    command = [sys.executable, "-m", "fedsparq", *words]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            _wait(lambda: ready(process.pid) or process.poll() is not None)
            begun = time.monotonic()
            os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=60)
            took = time.monotonic() - begun
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        said = process.stderr.read()
    assert process.returncode == 130, (process.returncode, said)
    assert said.endswith(expected), said
    assert "Traceback" not in said, said
    _wait(lambda: not _alive(process.pid))
    return took


def after(seconds: float) -> Callable[[int], bool]:
    """Ready when the command's own process has worked for so long, whatever else the machine does."""
    return lambda pid: cpu_seconds(pid) >= seconds


def played(out: Path, runs: int = 1) -> Callable[[int], bool]:
    """Ready when so many runs have a round behind them."""
    return lambda pid: sum(path.stat().st_size > 0 for path in out.rglob("rounds.jsonl")) >= runs


def _wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 400
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _alive(group: int) -> bool:
    """Whether there are processes of a group that have not ended."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


def run_words(out: Path) -> list[str]:
    return ["run", "--rounds", "5000", "--clients", "4", "--workers", "2", "--out", str(out)]


def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    for name, ready in {"a": after(0.15), "b": after(1.0), "c": played(tmp_path / "c")}.items():
        interrupt(run_words(tmp_path / name), ready, RESUME)


def test_an_interrupted_comparison_says_how_to_go_on(tmp_path: Path) -> None:
    spec, out = tmp_path / "spec.toml", tmp_path / "out"
    spec.write_text('methods = ["fedavg", "fedsparq", "float16"]\nrounds = 5000\n')
    interrupt(["compare", str(spec), "--out", str(out), "--jobs", "2", "--workers", "2"], played(out), SAME)


_COMMAND = """
import sys, time, numba
import fedsparq.cli.app as entry
from fedsparq.cli import main

def swallow():
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass

@numba.njit(nogil=True)
def compute(state):
    while state:
        state ^= (state << 13) & 0xFFFFFFFFFFFFFFF
        state ^= state >> 7
        state ^= (state << 17) & 0xFFFFFFFFFFFFFFF

class Swallowing:
    def __del__(self):
        time.sleep(600)

compute(0)
def call():
    print("ready", flush=True)
    DO
entry.call = call
sys.argv = ["fedsparq", "run"]
main()
"""


@pytest.mark.parametrize("doing", ["swallow()", "compute(1)", "Swallowing()"])
def test_an_interrupt_that_nobody_takes_ends_the_command_too(doing: str) -> None:
    command = [sys.executable, "-c", _COMMAND.replace("DO", doing)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        assert (process.returncode, process.stderr.read()) == (130, RESUME)


def test_advice() -> None:
    assert advice(["fedsparq", "run"]) == "; the same command with --resume goes on"
    assert advice(["fedsparq", "run", "--resume"]) == "; the same command goes on"
    assert advice(["fedsparq", "compare", "x"]) == "; the same command goes on"
    assert advice(["fedsparq", "report", "x"]) == ""


@pytest.mark.slow
def test_a_hundred_interrupts_at_random_moments(tmp_path: Path) -> None:
    moments = random.Random(0)
    took = [interrupt(run_words(tmp_path / f"{n}"), after(moments.uniform(0.12, 4.0)), RESUME) for n in range(100)]
    assert max(took) < LONGEST
