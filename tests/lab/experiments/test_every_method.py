"""Methods that keep something on both sides, as whole runs: resumed, over Flower and by two workers, bit for bit."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedsparq.lab.experiments.run import run
from fedsparq.lab.specs import RunSpec, check

METHODS = (
    *("fedcomgate", "ef21", "econtrol", "soteriafl", "scaled-feedback", "sa-pef", "powersgd"),
    *("jointsq", "fedfq", "drive", "fetchsgd", "demo", "sobaa", "spafl"),
)
SMALL = {"rounds": 3, "train_limit": 240, "test_limit": 60, "partition": "dirichlet", "faults": {"drop": 0.3}}


def spec(method: str, **changes: object) -> RunSpec:
    return check(RunSpec, SMALL | {"method": method} | changes)


def same(one: Path, other: Path) -> None:
    first, second = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert all(np.isfinite(array).all() for array in first.values())


@pytest.mark.parametrize("method", METHODS)
def test_interrupted_and_over_flower_it_is_the_same_run(method: str, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from fedsparq.lab.engines.grid import GridEngine
    from fedsparq.lab.engines.simulation import client_app
    from inprocess_grid import InProcessGrid

    def over_flower(spec: RunSpec, task: object, states: Path) -> GridEngine:
        grid = InProcessGrid([client_app(spec, states, str(Path.cwd()))] * spec.clients)
        return GridEngine(grid, dict(enumerate(grid.get_node_ids())), strict=True)

    whole = run(spec(method), tmp_path / "whole")
    run(spec(method, rounds=2), tmp_path / "parts")
    parts = run(spec(method), tmp_path / "parts")
    flower = run(spec(method), tmp_path / "flower", engine=over_flower)
    same(tmp_path / "whole", tmp_path / "parts")
    same(tmp_path / "whole", tmp_path / "flower")
    assert whole["upload_bytes"] == parts["upload_bytes"] == flower["upload_bytes"]
    assert whole["metrics"] == parts["metrics"] == flower["metrics"]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_two_workers_give_what_one_gives(method: str, tmp_path: Path) -> None:
    one, two = (run(spec(method), tmp_path / str(n), workers=n) for n in (1, 2))
    same(tmp_path / "1", tmp_path / "2")
    assert one["upload_bytes"] == two["upload_bytes"]


def test_channel_uses_are_recorded_beside_the_bytes(tmp_path: Path) -> None:
    summary = run(spec("sobaa", rounds=1, options={"fraction": 0.01}), tmp_path)
    assert summary["metrics"]["channel_uses"] == round(0.01 * summary["parameters"]) + 1
