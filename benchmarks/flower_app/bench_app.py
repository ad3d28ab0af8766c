"""Rounds without training: each node adds Laplace noise to the model, of a size that differs by layer."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from fedsparq.flower import Compressed, compress

client_app = ClientApp()
server_app = ServerApp()


def timed(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Write down how long everything inside took: the app, and the mods between it and this one."""
    start = time.perf_counter()
    reply = call_next(message, context)
    if reply.has_content():
        reply.content.metric_records["metrics"]["whole-seconds"] = time.perf_counter() - start
    return reply


@client_app.train(mods=[timed, compress()])
def train(message: Message, context: Context) -> Message:
    start = time.perf_counter()
    rng = np.random.default_rng([int(str(context.node_config["partition-id"])), time.time_ns()])
    after = {}
    for index, (name, array) in enumerate(message.content.array_records["arrays"].items()):
        value = array.numpy()
        if value.dtype.kind == "f":
            noise = rng.standard_exponential(value.shape, np.float32)
            noise *= rng.choice(np.array([-1, 1], np.float32), value.shape)
            value = value + np.float32(1e-3 / (1 + index % 7)) * noise
        after[name] = Array(np.asarray(value))
    metrics = MetricRecord({"num-examples": 1, "train-seconds": time.perf_counter() - start, "whole-seconds": 0.0})
    return Message(RecordDict({"arrays": ArrayRecord(after), "metrics": metrics}), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    from fedsparq.lab.tasks import models

    config = context.run_config
    nodes, rounds, variant = int(str(config["nodes"])), int(str(config["rounds"])), str(config["variant"])
    strategy: Strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    compressed = None
    if variant != "plain":
        compressed = Compressed(strategy, downlink="lattice" if variant == "both" else None)
        strategy = compressed
    start = ArrayRecord(models.build("resnet18", models.Signature((3, 32, 32), 10), seed=0).state_dict())
    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(1)
    moments: list[float] = []
    result = strategy.start(
        grid, start, num_rounds=rounds, evaluate_fn=lambda number, arrays: moments.append(time.perf_counter())
    )
    report = {
        "round_seconds": np.diff(moments).tolist(),
        "node": {number: dict(record) for number, record in result.train_metrics_clientapp.items()},
        "parameters": sum(int(np.prod(array.shape)) for array in start.values()),
        "dense_bytes": sum(len(array.data) for array in start.values()),
        "up": [r.up_bytes for r in compressed.rounds] if compressed else [],
        "down": [r.down_bytes for r in compressed.rounds] if compressed else [],
    }
    (Path(str(config["folder"])) / f"{variant}.json").write_text(json.dumps(report))
