"""FedSparQ as it would be installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build_wheel(folder: Path) -> Path:
    """Built from a copy, so that the working tree stays as it is."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    pip(sys.executable, "wheel", "--no-deps", "-w", str(folder / "dist"), str(folder))
    (built,) = (folder / "dist").glob("fedsparq-*.whl")
    return built


def pip(python: str, *command: str) -> None:
    done = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", *command], capture_output=True, text=True, timeout=900
    )
    if done.returncode:
        raise RuntimeError(f"pip {' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
