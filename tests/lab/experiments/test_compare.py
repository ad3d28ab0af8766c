"""Many runs: one after another or side by side with the same result, and a failure is one run's affair."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedsparq.cli.progress import Overall, following, human_time
from fedsparq.errors import OptionError, RunError
from fedsparq.lab.experiments.callbacks import Callback
from fedsparq.lab.experiments.compare import compare
from fedsparq.lab.results.records import Round
from fedsparq.lab.specs import RunSpec, check

SMALL = {"rounds": 2, "train_limit": 300, "test_limit": 100}
MODULE = """
import os, signal
from fedsparq import method

class Failing:
    def __init__(self, inner, die):
        self.inner, self.die = inner, die
    def init(self, layout):
        return self.inner.init(layout)
    def compress(self, update, layout, state, rng):
        if os.path.exists("mended"):
            return self.inner.compress(update, layout, state, rng)
        if self.die:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ZeroDivisionError("this compressor never worked")

def make(die: bool):
    from dataclasses import replace
    whole = method("fedavg")
    return replace(whole, compressor=Failing(whole.compressor, die))

def raises():
    return make(False)

def dies():
    return make(True)
"""


@pytest.fixture(autouse=True)
def _user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "broken.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield
    import sys

    sys.modules.pop("broken", None)


def specs(*methods: str) -> list[RunSpec]:
    return [check(RunSpec, SMALL | {"method": method}) for method in methods]


def lines(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


class Told(Callback):
    def __init__(self, heard: list[tuple[str, Any]], spec: RunSpec) -> None:
        self._heard, self._name = heard, spec.method

    def start(self, spec: RunSpec, folder: Path, behind: Sequence[Round]) -> None:
        self._heard.append((self._name, f"start {len(behind)}"))

    def round(self, record: Round) -> None:
        self._heard.append((self._name, record.round))

    def end(self, summary: Mapping[str, Any]) -> None:
        self._heard.append((self._name, "end"))

    def fail(self, error: str) -> None:
        self._heard.append((self._name, "fail"))

    def close(self) -> None:
        self._heard.append((self._name, "close"))


def test_side_by_side_is_the_same_as_one_after_another(tmp_path: Path) -> None:
    chosen = specs("fedavg", "fedsparq", "float16")
    heard: dict[int, list[tuple[str, Any]]] = {1: [], 2: []}
    for jobs in (1, 2):
        outcomes = compare(
            chosen, tmp_path / str(jobs), jobs=jobs, follow=lambda spec, jobs=jobs: Told(heard[jobs], spec)
        )
        assert [outcome.spec.method for outcome in outcomes] == ["fedavg", "fedsparq", "float16"]
        assert not any(outcome.failed for outcome in outcomes)
    for spec in chosen:
        own = [[what for name, what in heard[jobs] if name == spec.method] for jobs in (1, 2)]
        assert own[0] == own[1] == ["start 0", 1, 2, "end", "close"]
    for folder in (tmp_path / "1").iterdir():
        assert lines(folder) == lines(tmp_path / "2" / folder.name)
    again: list[tuple[str, Any]] = []
    compare(chosen[:1], tmp_path / "1", jobs=2, follow=lambda spec: Told(again, spec))
    assert [what for _, what in again] == ["start 2", "end", "close"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_that_fails_does_not_hold_up_the_others(tmp_path: Path, jobs: int) -> None:
    heard: list[tuple[str, Any]] = []
    chosen = specs("fedavg", "broken:raises", "float16", *(["broken:dies"] if jobs == 2 else []), "fedsparq")
    outcomes = compare(chosen, tmp_path / "out", jobs=jobs, follow=lambda spec: Told(heard, spec))
    errors = {outcome.spec.method: outcome.error for outcome in outcomes}
    assert [name for name, error in errors.items() if not error] == ["fedavg", "float16", "fedsparq"]
    assert "ZeroDivisionError: this compressor never worked" in errors["broken:raises"]
    assert ("broken:raises", "fail") in heard
    if jobs == 2:
        assert "SIGKILL" in errors["broken:dies"]
        assert ("broken:dies", "fail") in heard
    assert not any((tmp_path / "out").glob("broken*"))
    assert compare(specs("broken:raises"), tmp_path / "none" / "at-all", jobs=jobs)[0].failed
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file cannot hold results: File exists; choose another --out"):
        compare(specs("fedavg"), tmp_path / "file", jobs=jobs)
    (tmp_path / "mended").touch()
    outcomes = compare(chosen, tmp_path / "out", jobs=jobs)
    assert [outcome.error for outcome in outcomes] == [""] * len(chosen)


def test_an_error_of_a_callback_is_not_a_failure_of_the_run(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    class Stopping(Callback):
        def round(self, record: Round) -> None:
            raise StopError

    for jobs in (1, 2):
        with pytest.raises(StopError):
            compare(specs("fedavg", "float16"), tmp_path / "out", jobs=jobs, follow=lambda spec: Stopping())


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    one, two = (check(RunSpec, SMALL | {"variant": variant}) for variant in ("a b", "a-b"))
    with pytest.raises(OptionError, match=r"two runs, with variant 'a b' and 'a-b', would have one folder"):
        compare([one, two], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def record(number: int) -> Round:
    return Round(
        round=number, accuracy=50.0, loss=1.0, upload_bytes=10, download_bytes=1, upload_bytes_paper=1, kept=1.0
    )


def test_finished_runs_show_as_finished_and_time_left_is_told() -> None:
    now = [0.0]
    overall = Overall(4, 100, clock=lambda: now[0])
    overall.behind = 40
    assert overall.left == ""
    overall.played, now[0] = 20, 60.0
    assert overall.left == "2 min left"
    assert [human_time(seconds) for seconds in (3, 89, 600, 7200)] == ["3 s", "89 s", "10 min", "2.0 h"]
    for terminal in (False, True):
        screen = Console(file=io.StringIO(), width=100, force_terminal=terminal)
        chosen = specs("fedavg", "fedsparq")
        with following(screen, 2, 4) as follow:
            done, new = follow(chosen[0]), follow(chosen[1])
            done.start(chosen[0], Path(), [record(1), record(2)])
            done.end({})
            done.close()
            new.start(chosen[1], Path(), [])
            new.round(record(1))
            new.round(record(2))
            new.end({})
            new.close()
        shown = screen.file.getvalue()  # type: ignore[attr-defined]
        assert (
            "[1/2] fedavg · mnist-mini iid seed 0: 2 rounds, 50.00 %, 20 B sent per client (finished before)" in shown
        )
        assert "[2/2] fedsparq" in shown
        assert "0/2 " not in shown.split("finished before")[0]
