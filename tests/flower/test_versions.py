"""Every Flower that FedSparQ says it works with, each in an environment of its own; and what is said of all others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
from flwr.client import ClientApp as LegacyClientApp
from flwr.client import NumPyClient
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp.strategy import FedAvg
from toy import model
from wheels import build_wheel, pip

from fedsparq.errors import OptionError
from fedsparq.flower import Compressed, compress
from inprocess_grid import InProcessGrid

ROOT = Path(__file__).parents[2]
TESTED = ["1.38.0", "1.39.0", "1.40.0", "1.41.0", "1.42.0"]
ITS_OWN = ("flwr", "cryptography", "uv", "certifi")
"""What Flower's versions themselves pin differently; all else is as in constraints.txt."""


def test_the_pin_begins_with_the_oldest_that_is_tested_and_constraints_is_one_of_them():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    first = TESTED[0].split(".")[1]
    assert extras["flower"] == [f"flwr[simulation]>=1.{first}"]
    (pinned,) = re.findall(r"^flwr==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned in TESTED


@pytest.mark.parametrize("version", ["1.20.0", "1.37.0"])
def test_an_older_version_gets_one_sentence_at_import(version):
    done = imported(version)
    assert done.returncode == 1
    (said,) = (line for line in done.stderr.splitlines() if line.startswith("fedsparq.errors"))
    assert version in said
    assert "pip install 'flwr>=1.38'" in said


@pytest.mark.parametrize("version", ["1.43.0", "2.0.0.dev20270101"])
def test_a_newer_version_gets_a_warning_and_works(version):
    done = imported(version)
    assert done.returncode == 0
    assert done.stderr.count(f"this is {version}") == 1


def imported(version: str) -> subprocess.CompletedProcess[str]:
    code = f"import flwr; flwr.__version__ = {version!r}; import fedsparq.flower"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_strategy_of_the_old_api_is_refused_when_it_is_wrapped():
    with pytest.raises(OptionError, match=r"flwr\.server\.strategy.*how-to-upgrade-to-message-api"):
        Compressed(LegacyFedAvg())


def test_a_client_of_the_old_api_ends_the_run_with_a_sentence_that_says_how_to_move():
    class Legacy(NumPyClient):
        def fit(self, parameters, config):
            return parameters, 1, {}

    app = LegacyClientApp(client_fn=lambda context: Legacy().to_client(), mods=[compress()])
    with pytest.raises(OptionError, match=r"old API.*NumPyClient.*how-to-upgrade-to-message-api"):
        Compressed(FedAvg(fraction_evaluate=0.0)).start(InProcessGrid([app] * 2), model(), num_rounds=2)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("version", TESTED)
def test_three_rounds_on_each_flower(version, wheel, tmp_path):
    python = environment_with(version, wheel, tmp_path)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    clean |= {"XDG_STATE_HOME": str(tmp_path / "state"), "FLWR_HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0"}
    script = Path(__file__).with_name("three_rounds.py")
    done = subprocess.run([python, str(script)], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["flwr"] == version
    assert said["small"] < said["dense"] / 2


def environment_with(version: str, wheel: Path, folder: Path) -> str:
    """A new virtual environment with this Flower, FedSparQ and nothing else but what the two need."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = str(folder / "venv" / "bin" / "python")
    constraints = folder / "constraints.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints.write_text("\n".join(line for line in lines if line.split("==")[0] not in ITS_OWN))
    try:
        pip(python, "install", "-c", str(constraints), str(wheel), f"flwr=={version}")
    except RuntimeError as refused:
        missing = re.findall(r"No matching distribution found for (\S+)", str(refused))
        if not missing:
            raise
        # Its code on the dependencies of constraints.txt, where the index has not what it asks for
        pip(python, "install", "-c", str(ROOT / "constraints.txt"), str(wheel), "flwr")
        pip(python, "install", "--no-deps", f"flwr=={version}")
        warnings.warn(f"flwr {version} does not resolve here (no {missing[0]}): tested without", stacklevel=2)
    return python
