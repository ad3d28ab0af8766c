"""What each method's messages cost to make: compress and encode, as multiples of `fedsparq`'s, on three models.

One thread, all methods by turns, medians over rounds that follow each other with the state carried on. The adaptive
method measures messages of small models in rounds 0, 1, 2, 4, 8 and so on: such a round is `measured`.

    python benchmarks/methods.py
"""

from __future__ import annotations

import json
import time
from statistics import median
from typing import Any

import numpy as np
from codec import laplace, resnet18

import fedsparq
from fedsparq import Layout

METHODS = ("fedsparq", "fedsparq-adaptive", "stc", "uniform", "fedpaq", "qsgd", "eden")
MODELS = {
    "mlp": Layout.of({"fc1.weight": (128, 784), "fc1.bias": (128,), "fc2.weight": (10, 128), "fc2.bias": (10,)}),
    "lenet5": Layout.of(
        {"conv1.weight": (6, 1, 5, 5), "conv1.bias": (6,), "conv2.weight": (16, 6, 5, 5), "conv2.bias": (16,)}
        | {"fc1.weight": (120, 400), "fc1.bias": (120,), "fc2.weight": (84, 120), "fc2.bias": (84,)}
        | {"fc3.weight": (10, 84), "fc3.bias": (10,)}
    ),
    "resnet18": resnet18(),
}
ROUNDS = 16
"""The round after this many others is measured."""


def measure(rounds: int = ROUNDS) -> dict[str, Any]:
    """For each model: milliseconds of `fedsparq`, and every other method's multiple of them."""
    return {name: _measure_model(layout, rounds) for name, layout in MODELS.items()}


def _measure_model(layout: Layout, rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    updates = [laplace(layout, rng) for _ in range(2)]
    methods = {name: fedsparq.method(name) for name in METHODS}
    states = {name: chosen.init(layout) for name, chosen in methods.items()}
    compress: dict[str, list[float]] = {name: [] for name in METHODS}
    encode: dict[str, list[float]] = {name: [] for name in METHODS}
    for number in range(rounds + 1):
        for name, chosen in methods.items():
            start = time.perf_counter()
            payload, states[name] = chosen.compress(updates[number % 2], states[name], rng)
            between = time.perf_counter()
            fedsparq.encode(payload)
            compress[name].append(between - start)
            encode[name].append(time.perf_counter() - between)
    usual = [number for number in range(3, rounds) if number & (number - 1)]
    base = {what: median(took["fedsparq"][n] for n in usual) for what, took in (("c", compress), ("e", encode))}
    result: dict[str, Any] = {"fedsparq: compress ms": 1000 * base["c"], "fedsparq: encode ms": 1000 * base["e"]}
    for name in METHODS[1:]:
        result[name] = {
            "compress": median(compress[name][n] for n in usual) / base["c"],
            "compress and encode": median(compress[name][n] + encode[name][n] for n in usual) / (base["c"] + base["e"]),
        }
    result["fedsparq-adaptive"]["compress, measured"] = compress["fedsparq-adaptive"][rounds] / base["c"]
    return result


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
