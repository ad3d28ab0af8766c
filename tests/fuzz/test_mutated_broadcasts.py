"""A client refuses every broadcast that no server sends, in bounded time and in words of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def flood(program: str, count: int, seed: int, folder: Path) -> dict:
    """What became of so many broadcasts, in a process of its own: one that hangs is ended by a signal."""
    file = folder / "message"
    command = [sys.executable, str(HERE / program), str(count), str(seed), str(file)]
    paths = [str(HERE.parent), str(HERE.parent / "flower"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{done.stderr[-2000:]} ended by {file.read_bytes().hex() if file.exists() else ''}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("seed", [1, 2])
def test_some_thousand_mutated_broadcasts(seed, tmp_path):
    found = flood("mutated_broadcasts.py", 2_000, seed, tmp_path)
    assert found.get("raised", 0) == 0, found["errors"]
    assert found["taken"] > 100
    assert found["refused"] > 1_000


def test_some_mutated_messages_to_a_flower_node(tmp_path):
    found = flood("mutated_messages.py", 500, 1, tmp_path)
    assert found.get("raised", 0) == 0, found["errors"]
    assert found["taken"] > 20
    assert found["refused"] > 100


@pytest.mark.slow
def test_twenty_thousand_mutated_messages_to_a_flower_node(tmp_path):
    found = flood("mutated_messages.py", 20_000, 2, tmp_path)
    assert found.get("raised", 0) == 0, found["errors"]


@pytest.mark.slow
def test_a_hundred_thousand_mutated_broadcasts(tmp_path):
    found = flood("mutated_broadcasts.py", 100_000, 3, tmp_path)
    assert found.get("raised", 0) == 0, found["errors"]
