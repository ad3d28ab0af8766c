"""How much faster twelve small runs are with two side by side than one after another, by the command line."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_SPEC = """
methods = ["fedavg", "float16", "fedpaq", "top-10", "fedsparq", "fedsparq-adaptive"]
partitions = ["iid", "dirichlet"]
rounds = 25
"""


def measure() -> dict[str, Any]:
    """Twelve runs on the embedded data, from the start of the command to the last word of its report."""
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.toml"
        spec.write_text(_SPEC)
        seconds = {jobs: _seconds(spec, jobs) for jobs in (1, 2)}
    return {"12 runs": {"one by one, s": seconds[1], "two by two, s": seconds[2], "ratio": seconds[1] / seconds[2]}}


def _seconds(spec: Path, jobs: int) -> float:
    words = ["compare", str(spec), "--jobs", str(jobs), "--out", str(spec.parent / str(jobs))]
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "fedsparq", *words], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun
