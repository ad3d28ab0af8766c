"""What several threads give, beside as many processes, on two models, of whose updates 10 % are kept: ResNet-18, with
62 layers from 64 to 2.4 million coordinates, and 12 layers of 768 x 3,072, as a transformer has.

For each step: milliseconds on one thread and on two, and the throughput of two threads that share one update as a part
of that of two processes, each on one thread with an update of its own, measured in turns in the same run. A process
that has a CPU's caches and memory for itself is no measure: two do not have them either. Steps are repeated; reported
are the fastest.

    python benchmarks/threads.py
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
from codec import _in_use, laplace, resnet18

import fedsparq
from fedsparq import Layout

STEPS = ("copy", "compress", "encode", "decode", "add", "compress + encode", "decode + add")
THREADS = 2
_BLOCK = 5
"""Repetitions of a step in a row."""


MODELS = {"resnet18": resnet18(), "transformer": Layout.of({f"layer{i}": (768, 3072) for i in range(12)})}


def measure(rounds: int = 12) -> dict[str, Any]:
    return {f"{model}: {step}": found for model in MODELS for step, found in _measure(model, rounds).items()}


def _measure(model: str, rounds: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(THREADS + 1)
    pipes, processes = [], []
    for number in range(THREADS):
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(model, number, rounds, barrier, theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    own = {threads: _steps(model, 0, threads) for threads in (1, THREADS)}
    for steps in own.values():
        for step in steps.values():
            step()
    best: dict[str, dict[int, float]] = {name: {1: np.inf, THREADS: np.inf} for name in STEPS}
    barrier.wait()
    for _ in range(rounds):
        for name in STEPS:
            for threads, steps in own.items():
                best[name][threads] = min(best[name][threads], _block(steps[name]))
            barrier.wait()  # the processes begin
            barrier.wait()  # and have ended
    theirs_of = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return {
        name: {
            "1 thread ms": 1e3 * best[name][1],
            f"{THREADS} threads ms": 1e3 * best[name][THREADS],
            f"{THREADS} processes ms, one update each": 1e3 * max(times[name] for times in theirs_of),
            "of the processes' throughput": max(times[name] for times in theirs_of) / THREADS / best[name][THREADS],
            "speed-up": best[name][1] / best[name][THREADS],
            "1 thread, of a copy": best[name][1] / best["copy"][1],
        }
        for name in STEPS
    }


def _serve(model: str, number: int, rounds: int, barrier: Barrier, pipe: Any) -> None:
    """One of the processes: its own update, one thread, all at the same time."""
    steps = _steps(model, number, 1)
    for step in steps.values():
        step()
    best = dict.fromkeys(STEPS, np.inf)
    barrier.wait()
    for _ in range(rounds):
        for name in STEPS:
            barrier.wait()
            best[name] = min(best[name], _block(steps[name]))
            barrier.wait()
    pipe.send(best)


def _block(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(_BLOCK):
        step()
    return (time.perf_counter() - start) / _BLOCK


def _steps(model: str, seed: int, threads: int) -> dict[str, Callable[[], object]]:
    layout = MODELS[model]
    update = laplace(layout, np.random.default_rng(seed))
    method, rng = fedsparq.method("fedsparq", multiplier=float(-np.log(0.1))), np.random.default_rng(1)
    state, spare = _in_use(method.init(layout)), [_in_use(method.init(layout))]
    payload, _ = method.compress(update, state, rng)
    blob, warm = fedsparq.encode(payload), np.full(layout.size, 0, np.float32)
    total = np.full(layout.size, 0, np.float32)

    def compress() -> fedsparq.Payload:
        sent, spare[0] = method.compress(update, state, rng, recycle=spare[0], threads=threads)
        return sent

    return {
        "copy": lambda: np.copyto(warm, update),
        "compress": compress,
        "encode": lambda: fedsparq.encode(payload, threads=threads),
        "decode": lambda: fedsparq.decode(blob, layout),
        "add": lambda: payload.add_to(total, threads=threads),
        "compress + encode": lambda: fedsparq.encode(compress(), threads=threads),
        "decode + add": lambda: fedsparq.decode(blob, layout).add_to(total, threads=threads),
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
