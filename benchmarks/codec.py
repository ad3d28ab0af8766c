"""Compression and the wire format on vectors of ResNet-18's size, against memcpy and against the paper's own format.

Everything runs on one thread, by turns in one process; reported are medians, as multiples of copying the same vector
once. There are two such copies: into memory that is in use already (`np.copyto`), and into new memory (`array.copy()`),
which the operating system must hand out page by page. Compression writes its residual into new memory.

    python benchmarks/codec.py
"""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedsparq
from fedsparq import Layout, Payload, State
from fedsparq.wire.inspect import inspect

SHARES = (0.1, 0.4)

Vector = NDArray[np.float32]


def measure(repetitions: int = 15) -> dict[str, Any]:
    """Times, sizes and memory at 10 % and at 40 % kept."""
    layout = resnet18()
    update = laplace(layout, np.random.default_rng(0))
    return {f"{share:.0%} kept": _measure_share(layout, update, share, repetitions) for share in SHARES}


def resnet18(classes: int = 10) -> Layout:
    """The 11,181,642 parameters of torchvision's ResNet-18 with ten classes, by name and shape."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7), "bn1.weight": (64,), "bn1.bias": (64,)}
    inputs = 64
    for stage, width in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            prefix = f"layer{stage}.{block}"
            for conv, channels in ((1, inputs), (2, width)):
                shapes[f"{prefix}.conv{conv}.weight"] = (width, channels, 3, 3)
                shapes[f"{prefix}.bn{conv}.weight"] = shapes[f"{prefix}.bn{conv}.bias"] = (width,)
            if inputs != width:
                shapes[f"{prefix}.downsample.0.weight"] = (width, inputs, 1, 1)
                shapes[f"{prefix}.downsample.1.weight"] = shapes[f"{prefix}.downsample.1.bias"] = (width,)
            inputs = width
    return Layout.of(shapes | {"fc.weight": (classes, 512), "fc.bias": (classes,)})


def laplace(layout: Layout, rng: np.random.Generator) -> Vector:
    """An update whose layers differ in scale, from 1e-4 to 1e-2."""
    update = np.empty(layout.size, np.float32)
    for tensor in layout.parameters:
        update[tensor.span] = rng.laplace(scale=10 ** rng.uniform(-4, -2), size=tensor.size)
    return update


def _measure_share(layout: Layout, update: Vector, share: float, repetitions: int) -> dict[str, Any]:
    # |x| of a Laplace layer is exponential, so that exp(-m) of it reaches m times its mean
    method = fedsparq.method("fedsparq", multiplier=float(-np.log(share)))
    rng = np.random.default_rng(1)
    state = _in_use(method.init(layout))
    payload, _ = method.compress(update, state, rng)
    blob = fedsparq.encode(payload)
    warm, accumulator = np.full(layout.size, 0, np.float32), np.full(layout.size, 0, np.float32)

    def compress() -> Payload:
        return method.compress(update, state, rng)[0]

    def receive() -> None:
        fedsparq.decode(blob, layout).add_to(accumulator)

    sent_by_paper = paper_send(update, state, method)
    steps: dict[str, Callable[[], object]] = {
        "copy": lambda: np.copyto(warm, update),
        "new copy": update.copy,
        "compress": compress,
        "encode": lambda: fedsparq.encode(payload),
        "decode": lambda: fedsparq.decode(blob, layout),
        "decode + add": receive,
        "compress + encode": lambda: fedsparq.encode(compress()),
        "paper: compress + encode": lambda: paper_send(update, state, method),
        "paper: decode + add": lambda: paper_receive(sent_by_paper, accumulator),
    }
    seconds = _by_turns(steps, repetitions)
    return {
        "coordinates": layout.size,
        "kept": payload.kept / layout.size,
        "milliseconds": {name: 1e3 * t for name, t in seconds.items()},
        "of a copy": {name: t / seconds["copy"] for name, t in seconds.items()},
        "of a new copy": {name: t / seconds["new copy"] for name, t in seconds.items()},
        "bytes per kept": {
            "ours": len(blob) / payload.kept,
            "entropy bound": inspect(blob, layout).bound_bytes / payload.kept,
            "paper": len(sent_by_paper) / payload.kept,
        },
        "peak memory in vectors": {
            "compress + encode": _peak(steps["compress + encode"], update),
            "decode + add": _peak(receive, update),
            "paper: compress + encode": _peak(steps["paper: compress + encode"], update),
        },
    }


def _in_use(state: State) -> State:
    """The state with its residual in memory that has been written to."""
    return replace(state, feedback={"residual": np.full(state.layout.size, 0, np.float32)})


def _by_turns(steps: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """The median seconds of each step; the first turn compiles and warms up, and is not counted."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repetitions + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: median(taken[1:]) for name, taken in times.items()}


def _peak(step: Callable[[], object], vector: Vector) -> float:
    """The most memory that numpy and Python held at once beyond what they held before, in vectors."""
    tracemalloc.start()
    try:
        step()
        return tracemalloc.get_traced_memory()[1] / vector.nbytes
    finally:
        tracemalloc.stop()


def paper_send(update: Vector, state: State, method: fedsparq.Method) -> bytes:
    """The paper's Algorithm 1 in straight numpy: 4-byte indices and 2-byte values, with its residual left behind."""
    multiplier, residual = method.options["multiplier"], state.residual
    c = update + residual if residual is not None else update
    limits = np.empty_like(c)
    for tensor in state.layout.parameters:
        limits[tensor.span] = multiplier * np.abs(c[tensor.span]).mean()
    indices = np.flatnonzero(np.abs(c) >= limits).astype(np.uint32)
    values = c[indices].astype(np.float16)
    c[indices] -= values.astype(np.float32)
    return indices.tobytes() + values.tobytes()


def paper_receive(blob: bytes, accumulator: Vector) -> None:
    count = len(blob) // 6
    indices = np.frombuffer(blob, np.uint32, count)
    accumulator[indices] += np.frombuffer(blob, np.float16, count, 4 * count).astype(np.float32)


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
