"""How a round's time and the memory depend on the number of clients that do not take part in it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Any

_CHILD = """
import json, resource, sys, tempfile, time
from pathlib import Path
from fedsparq.lab.experiments.run import run
from fedsparq.lab.specs import RunSpec
clients, marks = int(sys.argv[1]), []
few = {"fraction": 10 / clients, "rounds": 12, "test_limit": 1000, "training": {"steps": 5}}
spec = RunSpec(dataset="mnist", partition="iid", clients=clients, **few)
with tempfile.TemporaryDirectory() as folder:
    run(spec, Path(folder) / "run", callbacks=[lambda record: marks.append(time.perf_counter())])
gaps = [b - a for a, b in zip(marks[1:], marks[2:])]
print(json.dumps([gaps, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20]))
"""


def measure() -> dict[str, Any]:
    """Ten clients of 100, 1,000 and 10,000 in each round, five steps each."""
    results: dict[str, Any] = {}
    for clients in (100, 1000, 10_000):
        done = subprocess.run([sys.executable, "-c", _CHILD, str(clients)], capture_output=True, text=True, check=True)
        gaps, peak = json.loads(done.stdout.splitlines()[-1])
        results[f"{clients:,} clients"] = {"seconds per round": statistics.median(gaps), "peak memory, GiB": peak}
    return results
