"""The codec of two trees side by side: CPU time and memory of an update of ResNet-18's size, and of a new process.

Each tree runs in a process of its own on one thread, and they take turns, a step at a time; reported are medians of CPU
time, so that what else the machine does counts little.

    git worktree add ../before <commit>
    python benchmarks/codec_before_after.py ../before
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

SHARES = (0.01, 0.1, 0.4)
STEPS = ("compress", "encode", "decode", "add", "compress + encode", "decode + add")
START = """
import time
import fedsparq, numpy as np
imported = time.process_time()
layout = fedsparq.Layout.of({"fc.weight": (50, 40), "fc.bias": (50,)})
method = fedsparq.method("fedsparq")
payload, _ = method.compress(np.ones(layout.size, np.float32), method.init(layout), np.random.default_rng(1))
compressed = time.process_time()
fedsparq.decode(fedsparq.encode(payload), layout).add_to(np.zeros(layout.size, np.float32))
print(imported, compressed, time.process_time())
"""


def measure(before: Path, turns: int) -> dict[str, Any]:
    """Times and memory of both trees, and how many times as long or as much the second takes."""
    trees = {"before": before.resolve(), "after": Path(__file__).resolve().parents[1]}
    workers = {name: _Worker(tree) for name, tree in trees.items()}
    found: dict[str, Any] = {}
    for share in SHARES:
        rows: dict[str, Any] = {}
        for step in STEPS:
            taken = {name: list[float]() for name in trees}
            for turn in range(turns + 1):
                for name, worker in workers.items():
                    seconds = worker.ask("time", share, step)
                    taken[name] += [1e3 * seconds] if turn else []
            rows[f"{step}, CPU ms"] = _compared({name: median(times) for name, times in taken.items()})
        for step in STEPS[-2:]:
            peaks = {name: worker.ask("memory", share, step) for name, worker in workers.items()}
            rows[f"{step}, peak memory in vectors"] = _compared(peaks)
        found[f"{share:.0%} kept"] = rows
    for worker in workers.values():
        worker.end()
    return found | {"new process, CPU ms": _starts(trees, turns)}


def _starts(trees: dict[str, Path], turns: int) -> dict[str, Any]:
    """What a new process takes from its beginning: to import, to compress once, to have read and added a message."""
    taken = {name: list[list[float]]() for name in trees}
    for turn in range(turns + 1):
        for name, tree in trees.items():
            done = subprocess.run(
                [sys.executable, "-c", START], env=_environment(tree), check=True, capture_output=True, text=True
            )
            taken[name] += [[1e3 * float(word) for word in done.stdout.split()]] if turn else []
    middle = {name: [median(column) for column in zip(*times, strict=True)] for name, times in taken.items()}
    steps = ("import", "first compress", "first decode + add")
    return {step: _compared({name: middle[name][at] for name in trees}) for at, step in enumerate(steps)}


def _compared(found: dict[str, float]) -> dict[str, float]:
    rounded = {name: round(value, 3) for name, value in found.items()}
    return rounded | {"times": round(found["after"] / found["before"], 3)}


def _environment(tree: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "FEDSPARQ_THREADS": "1"}


class _Worker:
    """A process of one tree, which does a step when it is asked to."""

    def __init__(self, tree: Path) -> None:
        command = [sys.executable, __file__, "--serve"]
        self._process = subprocess.Popen(
            command, env=_environment(tree), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, what: str, share: float, step: str) -> float:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([what, share, step]) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()


def _serve() -> None:
    """Answer questions from stdin until it ends."""
    steps = {share: _steps(share) for share in SHARES}
    for line in sys.stdin:
        what, share, step = json.loads(line)
        print(_memory(steps[share][step]) if what == "memory" else _time(steps[share][step]), flush=True)


def _steps(share: float) -> dict[str, Callable[[], object]]:
    from codec import laplace, resnet18

    import fedsparq

    layout = resnet18()
    update, rng = laplace(layout, np.random.default_rng(0)), np.random.default_rng(1)
    low, high = 0.0, 10.0
    for _ in range(15):  # the multiplier at which the second round keeps this share: the residual is in its update
        method = fedsparq.method("fedsparq", multiplier=(low + high) / 2)
        _, state = method.compress(update, method.init(layout), rng)
        payload, _ = method.compress(update, state, rng)
        low, high = (
            (method.options["multiplier"], high)
            if payload.kept > share * layout.size
            else (low, method.options["multiplier"])
        )
    blob, total = fedsparq.encode(payload), np.full(layout.size, 0, np.float32)

    def compress() -> fedsparq.Payload:
        return method.compress(update, state, rng)[0]

    return {
        "compress": compress,
        "encode": lambda: fedsparq.encode(payload),
        "decode": lambda: fedsparq.decode(blob, layout),
        "add": lambda: payload.add_to(total),
        "compress + encode": lambda: fedsparq.encode(compress()),
        "decode + add": lambda: fedsparq.decode(blob, layout).add_to(total),
    }


def _time(step: Callable[[], object]) -> float:
    begun = time.process_time()
    step()
    return time.process_time() - begun


def _memory(step: Callable[[], object]) -> float:
    """The most that numpy and Python held at once beyond what they held before, in vectors of float32."""
    tracemalloc.start()
    try:
        step()
        return tracemalloc.get_traced_memory()[1] / (4 * 11_181_642)
    finally:
        tracemalloc.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare the codec of another tree with this one's.")
    parser.add_argument("before", nargs="?", type=Path, help="a checkout of the other tree")
    parser.add_argument("--turns", type=int, default=15, help="how often each step is timed")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        _serve()
    elif given.before is None:
        parser.error("give the folder of the other tree")
    else:
        print(json.dumps(measure(given.before, given.turns), indent=2))
