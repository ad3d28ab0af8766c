"""The example in `examples/flower-pytorch`: two lines apart, and both learn."""

import contextlib
import difflib
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from wheels import build_wheel

from inprocess_grid import InProcessGrid

sys.path.insert(0, str(Path(__file__).parents[2] / "deploy"))

from one_machine import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-pytorch"


def test_before_and_after_are_two_lines_and_an_import_apart():
    before, after = ((EXAMPLE / name / "app.py").read_text().splitlines() for name in ("before", "after"))
    changed = [line for line in difflib.ndiff(before, after) if line[:2] == "+ " and line[2:].strip()]
    assert len(changed) == 3
    assert changed[0] == "+ from fedsparq.flower import FedSparQ, compress"
    assert (EXAMPLE / "before" / "task.py").read_bytes() == (EXAMPLE / "after" / "task.py").read_bytes()


def play(name: str, monkeypatch: pytest.MonkeyPatch, rounds: int) -> tuple[float, InProcessGrid]:
    monkeypatch.syspath_prepend(str(EXAMPLE / name))
    sys.modules.pop("task", None)
    module = runpy.run_path(str(EXAMPLE / name / "app.py"))
    grid, seen = InProcessGrid([module["app"]] * 3, node_config={"num-partitions": 3}), []
    measured = module["accuracy"]
    module["main"].__globals__["accuracy"] = lambda state: seen.append(measured(state)) or seen[-1]
    module["server"](grid, Context(1, 1, {}, RecordDict(), {"rounds": rounds}))
    return seen[-1], grid


def test_both_learn_and_the_second_sends_a_fraction(monkeypatch):
    plain, dense = play("before", monkeypatch, 3)
    packed, small = play("after", monkeypatch, 3)
    assert plain > 80
    assert packed > plain - 5
    assert sum(small.up.values()) < sum(dense.up.values()) / 4


def flwr_run(app: Path, home: Path, rounds: int, **environment: str) -> str:
    """What `flwr run .` says, called as a user would in the app's folder; Flower's own files go to `home`."""
    environment = os.environ | environment
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    options = ["--stream", "--federation-config", "num-supernodes=3", "--run-config", f"rounds={rounds}"]
    try:
        done = subprocess.run(
            ["flwr", "run", ".", *options], cwd=app, env=environment, capture_output=True, text=True, timeout=800
        )
    finally:
        end_superlink(home)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def end_superlink(home: Path) -> None:
    """`flwr run` starts a SuperLink that stays: this ends the one whose database lies in that home, and no other."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{home}/local-superlink/state.db" in (folder / "cmdline").read_text():
                os.kill(int(folder.name), signal.SIGTERM)


def has_learned(said: str, rounds: int) -> None:
    assert "App dependencies installed successfully via uv sync" in said, said
    assert said.count("aggregate_train: Received 3 results and 0 failures") == rounds, said
    *_, last = re.findall(r"MetricRecord: {'accuracy': ([0-9.]+)", said)
    assert float(last) > 80


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["before", "after"])
def test_flwr_run_works_in_a_clone_without_any_index(name, tmp_path):
    said = flwr_run(EXAMPLE / name, tmp_path, 3, UV_OFFLINE="1")
    has_learned(said, 3)
    assert ("fedsparq:" in said) == (name == "after")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_app_can_name_fedsparq_as_a_wheel(tmp_path):
    """For machines where FedSparQ is not installed; what FedSparQ itself needs comes from an index, torch does not."""
    wheel = build_wheel(tmp_path / "build")
    app = Path(shutil.copytree(EXAMPLE / "after", tmp_path / "after"))
    project = (app / "pyproject.toml").read_text()
    assert "\ndependencies = []\n" in project
    project = project.replace("\ndependencies = []\n", '\ndependencies = ["fedsparq"]\n')
    (app / "pyproject.toml").write_text(f'{project}\n[tool.uv.sources]\nfedsparq = {{ path = "{wheel}" }}\n')
    said = flwr_run(app, tmp_path, 2)
    has_learned(said, 2)
    (installed,) = re.findall(r"Installed: \[(.*)\]", said)
    assert f"fedsparq=={wheel.name.split('-')[1]} (from file://{wheel})" in installed
    assert "torch" not in installed
