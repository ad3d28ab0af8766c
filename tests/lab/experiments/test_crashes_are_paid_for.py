"""What clients answered before a crash, with noise of their own, stays in the books: in the first round too."""

import json
import math
import subprocess
import sys
from pathlib import Path
from signal import SIGKILL

import pytest

from fedsparq.privacy import epsilon_of, noise_for
from fedsparq.privacy.skellam import skellam_epsilon, skellam_variance

COMMAND = """
import os
import runpy
from pathlib import Path
from signal import SIGKILL

from fedsparq.lab.tasks.supervised import Supervised

evaluate = Supervised.evaluate


def dying(self, model):
    if Path("die").exists():  # all clients have answered, and the round's sum is made
        os.kill(os.getpid(), SIGKILL)
    return evaluate(self, model)


Supervised.evaluate = dying
runpy.run_module("fedsparq", run_name="__main__", alter_sys=True)
"""
RECORDS = ["--method", "soteriafl", "--example-clip", "1", "--lr", "0.5"]
SUMS = ["--method", "fedsparq-private", "--secure-sums"]
CENTRAL = ["--method", "fedsparq-private"]
ROUNDS = 4


def command(folder: Path, options: list[str], *more: str) -> subprocess.CompletedProcess[str]:
    """`fedsparq run`, which is killed in its first round if there is a file `die`."""
    small = ["--clients", "4", "--epsilon", "8", "--train-limit", "80", "--test-limit", "20", "--out", "out"]
    command = [sys.executable, "-c", COMMAND, "run", *options, *small, "--rounds", str(ROUNDS), *more]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def crash(folder: Path, options: list[str], *more: str) -> None:
    """Kill a run in round 1 when everybody has answered."""
    (folder / "die").touch()
    done = command(folder, options, *more)
    assert done.returncode == -SIGKILL, done.stderr
    (folder / "die").unlink()


def books(folder: Path) -> tuple[list[float], list[int], float]:
    """Epsilon after each round, who counted in it, and what the summary says."""
    records = [json.loads(line) for line in (folder / "out" / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "out" / "summary.json").read_text())
    return [each["epsilon"] for each in records], [each["clients"] for each in records], summary["epsilon"]


def test_noised_answers_of_a_first_round_that_crashed_are_paid_for(tmp_path: Path) -> None:
    """Three times each client answered round 1, so the budget of four rounds ends after round 2."""
    crash(tmp_path, RECORDS)
    crash(tmp_path, RECORDS, "--resume")
    assert command(tmp_path, RECORDS, "--resume").returncode == 0
    noise = noise_for(8.0, 1e-5, ROUNDS)
    told, counted, spent = books(tmp_path)
    assert told == pytest.approx([epsilon_of(1e-5, noise, 3), epsilon_of(1e-5, noise, 4)])
    assert counted == [4, 4]
    assert spent == pytest.approx(8.0)


def test_noised_sums_of_a_first_round_that_crashed_are_paid_for(tmp_path: Path) -> None:
    crash(tmp_path, SUMS)
    crash(tmp_path, SUMS, "--resume")
    assert command(tmp_path, SUMS, "--resume").returncode == 0
    l2 = 4 * math.sqrt(coordinates(tmp_path))
    sensitivity = l2, min(math.sqrt(coordinates(tmp_path)) * l2, l2**2)
    variance = skellam_variance(8.0, 1e-5, *sensitivity, ROUNDS)
    told, counted, spent = books(tmp_path)
    assert told == pytest.approx([skellam_epsilon(1e-5, variance, *sensitivity, rounds) for rounds in (3, 4)])
    assert counted == [4, 4]
    assert spent == pytest.approx(8.0)


def coordinates(folder: Path) -> int:
    """How many coordinates a round of `fedsparq-private` has, a public number."""
    from fedsparq.lab.engines.engine import build_task
    from fedsparq.lab.specs import RunSpec, check

    spec = check(RunSpec, {"method": "fedsparq-private", "clients": 4, "train_limit": 80, "privacy": {"epsilon": 8.0}})
    return int(spec.chosen_method().aggregator.support.count(build_task(spec).layout))  # type: ignore[attr-defined]


def test_a_budget_that_crashes_used_up_asks_nobody_again(tmp_path: Path) -> None:
    """Nor can another budget, or a run from the start, take its place in the same folder."""
    crash(tmp_path, RECORDS, "--rounds", "2")
    refused = [command(tmp_path, RECORDS, "--rounds", "2")]
    refused.append(command(tmp_path, RECORDS, "--rounds", "2", "--resume", "--delta", "1e-6"))
    crash(tmp_path, RECORDS, "--rounds", "2", "--resume")
    refused.append(command(tmp_path, RECORDS, "--rounds", "2", "--resume"))
    assert all(done.returncode > 0 and "Traceback" not in done.stderr for done in refused)
    assert not (tmp_path / "out" / "summary.json").exists()


def test_where_the_server_adds_the_noise_nothing_left_before_the_crash(tmp_path: Path) -> None:
    """Noise that was in no checkpoint was seen by nobody: all four rounds are there to be spent."""
    crash(tmp_path, CENTRAL)
    assert command(tmp_path, CENTRAL, "--resume").returncode == 0
    told, _, spent = books(tmp_path)
    assert len(told) == ROUNDS
    assert spent == pytest.approx(8.0)
