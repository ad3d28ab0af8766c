"""An experiment as a folder that `flwr run` takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from fedsparq.archive import write_safely
from fedsparq.errors import MissingExtraError, OptionError
from fedsparq.lab.specs import RunSpec

_APP = "fedsparq.lab.experiments.flower_app"


def write_app(spec: RunSpec, folder: Path, *, out: str = "") -> Path:
    """Make `folder` a Flower app of this experiment; its `pyproject.toml` is the app, all code is in the package.

    ``out`` is where the server writes its results; without it, in its user's state folder by the number of the run.
    """
    path = folder / "pyproject.toml"
    if path.exists() and "experiments.flower_app" not in path.read_text(errors="replace"):
        raise OptionError(f"{path} is another project's; choose an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_safely(path, tomli_w.dumps(_project(spec, out)).encode())
    return folder


def submit(app: Path, superlink: str = "", *, stream: bool = True) -> int:
    """`flwr run` of an app on a connection of the user's Flower configuration; returns its exit code."""
    program = shutil.which("flwr", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if program is None:
        raise MissingExtraError("deployment needs Flower: pip install 'fedsparq[flower]'")
    command = [program, "run", str(app), *([superlink] if superlink else []), *(["--stream"] if stream else [])]
    return subprocess.run(command, check=False).returncode


def _project(spec: RunSpec, out: str) -> dict[str, Any]:
    if spec.faults.any:
        raise OptionError("faults are made by the engines local and flower-simulation; a deployment has its own")
    config = spec.model_dump(mode="json", exclude_none=True, exclude={"faults", "engine"})
    components = {"serverapp": f"{_APP}:server_app", "clientapp": f"{_APP}:client_app"}
    app = {"publisher": "fedsparq", "components": components, "config": {"out": out, **config}}
    # no dependencies: Flower would install them from an index for each run; every machine has FedSparQ already
    project = {
        "name": "fedsparq-experiment",
        "version": version("fedsparq"),
        "description": f"{spec.label} on {spec.dataset}",
        "license": "Apache-2.0",
        "requires-python": ">=3.11",
        "dependencies": [],
    }
    return {"project": project, "tool": {"flwr": {"app": app}}}
