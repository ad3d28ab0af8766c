"""States, residuals and secrets are their owner's alone from the moment they exist; results are as the umask says."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict
from safetensors.numpy import save_file

import fedsparq
from fedsparq import Layout
from fedsparq.errors import RunError
from fedsparq.federate.store import DiskStore
from fedsparq.lab.experiments.deploy import write_app
from fedsparq.lab.experiments.flower_app import client_app, server_app
from fedsparq.lab.experiments.run import run
from fedsparq.lab.specs import RunSpec, check
from fedsparq.large import compress
from inprocess_grid import InProcessGrid

TINY = {"clients": 3, "rounds": 2, "train_limit": 60, "test_limit": 20}
MASKED = {"method": "fedsparq-private", "privacy": {"secure_sums": True}}
UPDATE = {"w": np.linspace(-1, 1, 3000, dtype=np.float32)}
FOR_ALL = {"spec.toml": "0o644", "rounds.jsonl": "0o644", "summary.json": "0o644", "model.safetensors": "0o644"}


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(*paths: Path) -> dict[str, str]:
    return {path.name: oct(path.stat().st_mode & 0o777) for path in paths}


def assert_private(folder: Path, least: int) -> None:
    """All folders are 0700 and all files 0600; there are so many files at least."""
    below = [folder, *folder.rglob("*")]
    assert sum(path.is_file() for path in below) >= least
    assert {
        path: mode for path in below for mode in modes(path).values() if mode != ("0o700", "0o600")[path.is_file()]
    } == {}


@pytest.mark.parametrize(
    "spec", [{"options": {"multiplier": 1.5}, "downlink": "float16"}, MASKED], ids=["plain", "masked"]
)
def test_nodes_of_a_deployment_and_its_server(tmp_path: Path, spec: dict) -> None:
    out, states = tmp_path / "results", tmp_path / "var" / "states"
    app = write_app(check(RunSpec, TINY | spec), tmp_path / "app", out=str(out))
    config = flatten_dict(tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])
    grid = InProcessGrid([client_app] * 3)
    for node, context in grid.contexts.items():
        context.run_config = config
        context.node_config["fedsparq-state"] = str(states / f"{node}")
    server_app(grid, Context(1, 1, {}, RecordDict(), config))
    assert_private(states.parent, 9 if spec is MASKED else 3)
    assert_private(out / "state", 1)
    assert modes(out, *map(out.joinpath, FOR_ALL)) == {"results": "0o755", **FOR_ALL}


def test_the_state_of_a_run_with_late_messages(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(check(RunSpec, TINY | {"faults": {"late": 0.5}}), out)
    assert {path.name for path in (out / "state").iterdir()} >= {"clients", "delayed", "server.safetensors"}
    assert_private(out / "state", 5)
    assert modes(out, *map(out.joinpath, FOR_ALL)) == {"run": "0o755", **FOR_ALL}


def test_the_residual_of_a_large_model_but_not_its_message_nor_the_model(tmp_path: Path) -> None:
    save_file(UPDATE, tmp_path / "u")
    for words in (
        ["compress", "u", "--residual", "own/deep/residual", "--out", "messages/m"],
        ["apply", "u", "messages/m", "--out", "models/model"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "fedsparq", *words], cwd=tmp_path, check=False, capture_output=True
        )
        assert done.returncode == 0, done.stderr
    assert_private(tmp_path / "own", 2)
    for path in (tmp_path / "messages" / "m", tmp_path / "models" / "model"):
        assert modes(path, path.parent) == {path.name: "0o644", path.parent.name: "0o755"}


def test_a_state_that_is_saved_by_its_user(tmp_path: Path) -> None:
    path = tmp_path / "states" / "client"
    fedsparq.method("fedsparq").init(Layout.of({"w": (30,)})).save(path)
    assert_private(path.parent, 1)


CREATED = """
import os, sys
import numpy as np
from pathlib import Path
from fedsparq.archive import write_safely
from fedsparq.large import compress
from fedsparq.federate.store import DiskStore
os.umask(0)
def hook(event, arguments):
    if event == "os.chmod":
        os._exit(77)
sys.addaudithook(hook)
folder = Path(sys.argv[1])
compress({"w": np.ones(300, np.float32)}, folder / "residual", folder / "message")
store = DiskStore(folder / "node" / "0")
with store.locked():
    write_safely(store.folder / "state", b"state", private=True)
write_safely(folder / "results" / "model", b"model")
"""


def test_there_is_no_moment_at_which_others_may_read(tmp_path: Path) -> None:
    """No umask helps, and no file becomes private by a chmod after it was created."""
    folder = tmp_path / "all"
    done = subprocess.run([sys.executable, "-c", CREATED, str(folder)], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert_private(folder / "node", 2)
    assert modes(folder, folder / "residual", folder / ".residual.lock") == {
        "all": "0o700",
        "residual": "0o600",
        ".residual.lock": "0o600",
    }
    assert modes(folder / "results" / "model", folder / "message") == {"model": "0o666", "message": "0o666"}


def test_links_that_somebody_has_laid_lead_nowhere(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "lock").symlink_to(victim)
    with pytest.raises(RunError), DiskStore(tmp_path).locked():
        pass
    (tmp_path / ".residual.lock").symlink_to(victim)
    with pytest.raises(RunError):
        compress(UPDATE, tmp_path / "residual", tmp_path / "message")
    (tmp_path / ".residual.lock").unlink()
    (tmp_path / ".residual.tmp").symlink_to(victim)
    compress(UPDATE, tmp_path / "residual", tmp_path / "message")
    assert not (tmp_path / "residual").is_symlink()
    assert victim.read_bytes() == b"precious"
