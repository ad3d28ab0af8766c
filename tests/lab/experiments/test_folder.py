"""A run's folder: one process at a time, nothing left of what failed at the start, rounds added, states missed."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from fedsparq.errors import RunError
from fedsparq.lab import folder as folders
from fedsparq.lab.experiments.callbacks import Callback
from fedsparq.lab.experiments.run import run
from fedsparq.lab.folder import RunFolder
from fedsparq.lab.lock import locked
from fedsparq.lab.specs import RunSpec, check

SMALL = {"rounds": 4, "train_limit": 600, "test_limit": 200, "partition": "dirichlet"}


def spec(**changes: Any) -> RunSpec:
    return check(RunSpec, SMALL | changes)


def lines(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


class StopError(Exception):
    pass


def stopping_after(number: int) -> Any:
    def watch(record: Any) -> None:
        if record.round == number:
            raise StopError

    return watch


def test_a_second_process_in_a_folder_is_refused_and_the_first_is_right(tmp_path: Path) -> None:
    settings, out = tmp_path / "spec.toml", tmp_path / "two"
    settings.write_text("train_limit = 600\ntest_limit = 200\n")
    words = ["run", str(settings), "--partition", "dirichlet", "--rounds", "12", "--out", str(out)]
    command = [sys.executable, "-m", "fedsparq", *words]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (out / "rounds.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(RunError, match=rf"{re.escape(str(out))} is in use by process {first.pid}; wait"):
        run(spec(rounds=12), out, resume=True)
    assert first.wait(timeout=200) == 0
    run(spec(rounds=12), tmp_path / "alone")
    assert lines(out) == lines(tmp_path / "alone")
    assert not (out / ".lock").exists()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = (
        f"from fedsparq.lab.lock import locked\nfrom pathlib import Path\nimport os, sys, time\n"
        f"with locked(Path({str(tmp_path / 'run')!r})):\n    print('held', flush=True)\n    time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RunError, match=f"in use by process {process.pid}"), locked(tmp_path / "run"):
            pass
        process.kill()
    with locked(tmp_path / "run"):
        assert (tmp_path / "run" / ".lock").read_text() == str(os.getpid())
    assert list((tmp_path / "run").iterdir()) == []


def test_one_after_another_take_the_lock(tmp_path: Path) -> None:
    for _ in range(3):
        with locked(tmp_path / "a" / "b"):
            pass
    assert not (tmp_path / "a").exists()


def test_a_failed_start_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(StopError):
        run(spec(), tmp_path / "runs" / "here", engine=failing)
    assert list(tmp_path.iterdir()) == []
    own = tmp_path / "own"
    own.mkdir()
    (own / "notes.txt").write_text("mine")
    with pytest.raises(StopError):
        run(spec(), own, engine=failing)
    assert [path.name for path in own.iterdir()] == ["notes.txt"]
    run(spec(rounds=1, seed=7), own)
    assert (own / "notes.txt").read_text() == "mine"


def failing(*_: Any) -> Any:
    raise StopError


def test_what_a_kill_before_the_first_round_leaves_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(spec(seed=9).to_toml())
    (tmp_path / ".lock").write_text("1")
    run(spec(rounds=1), tmp_path)
    assert len(lines(tmp_path)) == 1


@pytest.mark.parametrize("changes", [{}, {"downlink": "lattice"}, {"faults": {"drop": 0.2, "late": 0.2}}])
def test_rounds_are_added_to_a_finished_run(tmp_path: Path, changes: dict[str, Any]) -> None:
    whole = run(spec(**changes), tmp_path / "whole")
    run(spec(rounds=2, **changes), tmp_path / "longer")
    longer = run(spec(**changes), tmp_path / "longer")
    assert lines(tmp_path / "longer") == lines(tmp_path / "whole")
    assert {**longer, "seconds": 0} == {**whole, "seconds": 0}
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "longer")]
    assert all((models[0][key] == models[1][key]).all() for key in models[0])
    assert "rounds = 4" in (tmp_path / "longer" / "spec.toml").read_text()


def test_a_finished_run_made_with_another_default_is_not_taken_for_this_one(tmp_path: Path) -> None:
    wanted = check(RunSpec, {"method": "fedsparq-adaptive", "rounds": 1, "train_limit": 200, "test_limit": 50})
    made = run(wanted, tmp_path)
    assert run(wanted, tmp_path) == made
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(made | {"options": made["options"] | {"bits": 0.3}}))
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    for asked in (wanted, wanted.model_copy(update={"rounds": 2})):
        with pytest.raises(RunError, match=r"when its default was bits=0.3 \(now 0.2\); choose another --out"):
            run(asked, tmp_path)
        assert {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()} == before


def test_rounds_are_added_to_an_unfinished_run(tmp_path: Path) -> None:
    run(spec(), tmp_path / "whole")
    with pytest.raises(StopError):
        run(spec(rounds=100), tmp_path / "other", callbacks=[stopping_after(2)])
    run(spec(), tmp_path / "other", resume=True)
    assert lines(tmp_path / "other") == lines(tmp_path / "whole")


def test_a_large_state_is_not_kept_and_what_to_do_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(spec(rounds=2), tmp_path / "kept")
    sizes = sum(path.stat().st_size for path in (tmp_path / "kept" / "state").rglob("*.safetensors"))
    assert sizes < 4_000_000
    assert len(list((tmp_path / "kept").glob("state/clients/*/*"))) == 3
    monkeypatch.setattr(folders, "MAX_RETAINED_BYTES", sizes - 1)
    run(spec(rounds=2), tmp_path / "gone")
    assert not (tmp_path / "gone" / "state").exists()
    with pytest.raises(RunError, match=r"state was not kept .* choose another --out: the same first rounds"):
        run(spec(rounds=3), tmp_path / "gone")
    assert RunFolder(tmp_path / "gone").summary()["rounds"] == 2


def test_a_budget_for_the_whole_run_is_not_stretched(tmp_path: Path) -> None:
    limited = {"method": "fedsparq-adaptive", "budget": "10 kB/run"}
    run(spec(rounds=2, **limited), tmp_path)
    with pytest.raises(RunError, match="budget"):
        run(spec(rounds=3, **limited), tmp_path)


class Listening(Callback):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.mark.parametrize("damage", ["deleted", "damaged", "older"])
def test_lost_client_states_are_said(tmp_path: Path, damage: str) -> None:
    with pytest.raises(StopError):
        run(spec(), tmp_path, callbacks=[stopping_after(2)])
    states = sorted((tmp_path / "state" / "clients" / "client-1").iterdir())
    if damage == "deleted":
        shutil.rmtree(states[0].parent)
    for state in states if damage == "damaged" else []:
        state.write_bytes(state.read_bytes()[:-3] + b"xyz")
    if damage == "older":
        states[-1].unlink()
    heard = Listening()
    summary = run(spec(), tmp_path, resume=True, callbacks=[heard])
    assert len(heard.warnings) == len(summary["lost_states"]) == 1
    assert "client 1: its state is lost" in heard.warnings[0]
    assert summary["lost_states"][0].startswith("client 1, after round 2: ")
    reasons = [event["reason"] for event in lines(tmp_path)[2]["events"] if event["client"] == 1]
    assert any(reason.startswith("client state lost: ") for reason in reasons)


def test_undisturbed_runs_say_nothing_of_states(tmp_path: Path) -> None:
    with pytest.raises(StopError):
        run(spec(), tmp_path, callbacks=[stopping_after(2)])
    heard = Listening()
    assert "lost_states" not in run(spec(), tmp_path, resume=True, callbacks=[heard])
    assert heard.warnings == []
