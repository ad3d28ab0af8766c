"""docs/EXTENDING.md as it stands: its files, saved under their names, work in every place that it names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

pytest.importorskip("torch")
pytest.importorskip("flwr")

from fedsparq.errors import RunError
from fedsparq.lab.engines.flower import GridEngine, client_app
from fedsparq.lab.experiments.run import run
from fedsparq.lab.experiments.sweep import sweep
from fedsparq.lab.specs import RunSpec, load_compare
from fedsparq.payload import values
from inprocess_grid import InProcessGrid

DOC = Path(__file__).parents[1] / "docs" / "EXTENDING.md"
SMALL = {"rounds": 3, "train_limit": 600, "test_limit": 200, "seed": 1, "clients": 4}
METHODS = ["mine:every_tenth", "mine:robust", "brain:bfloat16", "gentle:gentle"]
OURS = ("mine", "brain", "gentle", "plane", "other")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder with the files of the page, and they in it."""
    files = re.findall(r"^```python (\w+\.py)\n(.*?)^```$", DOC.read_text(), re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == ["mine.py", "brain.py", "gentle.py", "plane.py"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(values, "_kinds", dict(values._kinds))
    _forget()
    yield tmp_path
    _forget()


def _forget() -> None:
    for name in OURS:
        sys.modules.pop(name, None)


class StopError(Exception):
    """The run is interrupted here."""


def play(out: str, stop_after: int = 0, **settings: Any) -> dict[str, Any]:
    """The model that a run gives."""

    def watch(record: Any) -> None:
        if record.round == stop_after:
            raise StopError

    engine = settings.pop("engine_maker", None)
    workers, resume = settings.pop("workers", 1), settings.pop("resume", False)
    run(RunSpec(**SMALL | settings), Path(out), workers=workers, resume=resume, callbacks=[watch], engine=engine)
    return load_file(Path(out) / "model.safetensors")


def rounds(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(out) / "rounds.jsonl").read_text().splitlines()]


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


@pytest.mark.parametrize("method", METHODS)
def test_one_worker_two_workers_resumed_and_over_flower(method: str) -> None:
    one = play("one", method=method)
    assert same(one, play("two", method=method, workers=2))
    with pytest.raises(StopError):
        play("cut", method=method, stop_after=1)
    _forget()
    assert same(one, play("cut", method=method, resume=True))
    assert same(one, play("flower", method=method, engine_maker=_grid))
    summary = json.loads(Path("one/summary.json").read_text())
    assert summary["label"] == method
    assert summary["accuracy"] > 15
    reasons = {event["reason"] for record in rounds("one") for event in record["events"]}
    if method == "mine:robust":
        assert any("put back into the residual" in reason for reason in reasons)
    else:
        assert not reasons


def _grid(spec: RunSpec, task: object, states: Path) -> GridEngine:
    grid = InProcessGrid([client_app(spec, states.resolve(), str(Path.cwd()))] * spec.clients)
    return GridEngine(grid, dict(enumerate(grid.get_node_ids())), strict=True)


def test_a_task_locally_and_over_flower() -> None:
    words = {"task": "plane:plane", "method": "gentle:gentle", "rounds": 20, "training": {"lr": 0.05}}
    one = play("one", **words)
    assert same(one, play("two", **words, workers=2))
    assert same(one, play("flower", **words, engine_maker=_grid))
    with pytest.raises(StopError):
        play("cut", **words, stop_after=7)
    assert same(one, play("cut", **words, resume=True))
    play("adam", **words | {"method": "fedavg", "optimizer": "momentum", "optimizer_options": {"momentum": 0.5}})
    losses = [record["loss"] for record in rounds("adam")]
    assert losses[-1] < losses[0] / 3
    assert rounds("adam")[0]["accuracy"] is None


def test_all_of_it_in_flowers_simulation(folder: Path) -> None:
    """Method, client rule, kind of value, aggregator, optimizer and task of a user's, in a process of Ray's."""
    (folder / "other.py").write_text(
        "import fedsparq as fq\nfrom brain import Everything16\nfrom gentle import Gentle\n"
        "from mine import SignStep, below_median\n"
        "def everything(decay: float = 1e-3):\n"
        "    parts = fq.whole_round(below_median), SignStep()\n"
        "    return fq.Method(Everything16(), 'full', (Gentle(decay, 1.0),), *parts)\n"
    )
    words = {"task": "plane:plane", "method": "other:everything", "options": {"decay": 0.01}, "rounds": 2}
    assert same(play("local", **words), play("ray", **words, engine="flower-simulation"))


def test_a_changed_source_is_another_version(folder: Path) -> None:
    other = folder / "other.py"
    other.write_text((folder / "mine.py").read_text())
    with pytest.raises(StopError):
        play("cut", method="other:every_tenth", stop_after=1)
    other.write_text(other.read_text().replace("layout.size, 10,", "layout.size, 20,"))
    _forget()
    with pytest.raises(RunError, match=r"version .* of 'other:every_tenth' instead of version"):
        play("cut", method="other:every_tenth", resume=True)


def test_in_a_spec(folder: Path) -> None:
    (folder / "spec.toml").write_text('methods = ["fedavg", "mine:robust"]\nrounds = 1\ntrain_limit = 300\n')
    outcomes = sweep(load_compare(folder / "spec.toml", {"test_limit": 100}).runs(), folder / "compared")
    assert [outcome.summary["label"] for outcome in outcomes if outcome.summary] == ["fedavg", "mine:robust"]


def test_the_commands_and_the_python_of_the_page(folder: Path) -> None:
    text = DOC.read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=True)
    assert "mine:every_tenth" in done.stdout
    commands = re.findall(r"^```sh\nfedsparq (.*?)\n```$", text, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        subprocess.run([sys.executable, "-m", "fedsparq", *command.split()], capture_output=True, check=True)
    assert len(list(folder.glob("runs/*/summary.json"))) == 2
