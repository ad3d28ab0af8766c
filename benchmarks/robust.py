"""A round of 100 replies of ResNet-18's size under each aggregator: time and memory as multiples of the plain mean's.

A round is what the server does: replies come as bytes, are decoded, checked and handed to the aggregator; the round is
closed. Times are CPU seconds of one thread, the least of some repetitions; memory is the most that was held at once
beyond what the server holds before the round and the bytes of the replies. Coordinate-wise rules are measured with 10
dense replies, against the mean of the same.

    python benchmarks/run.py robust
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from typing import Any

import numpy as np
from codec import laplace, resnet18

import fedsparq
from fedsparq import Layout, Model, Server
from fedsparq.aggregate import (
    CenteredClipping,
    CoordinateMedian,
    FLTrust,
    GeometricMedian,
    Mean,
    MultiKrum,
    Robust,
    TrimmedMean,
    clipped_mean,
)
from fedsparq.federate.messages import Reply
from fedsparq.protocols import Aggregator

CLIENTS, DENSE_CLIENTS, DISTINCT = 100, 10, 10
OFTEN = ("mean", "centered-clipping", "robust")
"""Measured several times; the others once."""


def measure(repetitions: int = 3) -> dict[str, Any]:
    """All rules on replies of a twentieth of the coordinates, the most used ones on a tenth."""
    layout = resnet18()
    own = laplace(layout, np.random.default_rng(99))
    sparse: dict[str, Aggregator] = {
        "mean": Mean(),
        "centered-clipping": CenteredClipping(),
        "centered-clipping bucket=1": CenteredClipping(bucket=1),
        "clipped-mean": clipped_mean(0.0),
        "robust": Robust(),
        "fltrust": FLTrust(train=lambda vector, buffers, number: own),
        "geometric-median": GeometricMedian(),
        "multi-krum": MultiKrum(),
    }
    few = {rule: sparse[rule] for rule in OFTEN}
    dense: dict[str, Aggregator] = {
        "mean": Mean(),
        "coordinate-median": CoordinateMedian(),
        "trimmed-mean": TrimmedMean(),
    }
    return {
        "fedsparq-adaptive": _compared(layout, "fedsparq-adaptive", sparse, CLIENTS, repetitions),
        "percentile (10 % kept)": _compared(layout, "percentile", few, CLIENTS, repetitions),
        f"float16, {DENSE_CLIENTS} clients": _compared(layout, "float16", dense, DENSE_CLIENTS, repetitions),
    }


def _compared(layout: Layout, name: str, rules: dict[str, Aggregator], clients: int, repetitions: int) -> Any:
    chosen = fedsparq.method(name)
    blobs = []
    for seed in range(DISTINCT):
        update = laplace(layout, np.random.default_rng(seed))
        blobs.append(fedsparq.encode(chosen.compress(update, chosen.init(layout), np.random.default_rng(seed))[0]))
    found: dict[str, Any] = {}
    for rule, aggregator in rules.items():
        _round(layout, chosen.with_server(aggregator), blobs, 2)  # compiles
        often = repetitions if rule in OFTEN else 1
        times = [_round(layout, chosen.with_server(aggregator), blobs, clients) for _ in range(often)]
        tracemalloc.start()
        _round(layout, chosen.with_server(aggregator), blobs, clients)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        found[rule] = {"seconds": min(times), "MB": peak / 1e6}
        print(name, rule, found[rule], file=sys.stderr, flush=True)
    plain = dict(found["mean"])
    for measured in found.values():
        measured |= {"times the mean's": measured["seconds"] / plain["seconds"]}
        measured |= {"memory, times the mean's": measured["MB"] / plain["MB"]}
    return found


def _round(layout: Layout, method: fedsparq.Method, blobs: list[bytes], clients: int) -> float:
    server = Server(layout, method, Model(np.zeros(layout.size, np.float32)))
    server.open_round(range(clients))
    digest = server.identity_of(0).digest
    messages = [Reply(1, digest, 10, blob).encode() for blob in blobs]
    begun = time.thread_time()
    for client in range(clients):
        assert server.receive(client, messages[client % len(messages)]).taken
    server.close_round()
    return time.thread_time() - begun


if __name__ == "__main__":
    import json

    print(json.dumps(measure(), indent=2))
