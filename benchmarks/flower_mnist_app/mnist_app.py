"""An MLP (101,770 parameters) on the small MNIST; nodes train and evaluate in each round.

It is numpy alone: each message has a process of its own, and most of what that costs is imports.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from numpy.typing import NDArray

from fedsparq.flower import Compressed, FedSparQ, compress
from fedsparq.lab.tasks.load import load

METHOD = "fedsparq-adaptive"
BATCH, RATE = 32, np.float32(0.1)
Layers = dict[str, NDArray[np.float32]]

client_app = ClientApp()
server_app = ServerApp()


@client_app.train(mods=[compress()])
def train(message: Message, context: Context) -> Message:
    node, nodes = (int(str(context.node_config[key])) for key in ("partition-id", "num-partitions"))
    number = int(str(message.content.config_records["config"]["server-round"]))
    images, labels = _examples("train")
    images, labels = images[node::nodes], labels[node::nodes]
    layers = _layers(message.content.array_records["arrays"])
    order = np.random.default_rng([node, number]).permutation(len(labels))
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        _step(layers, images[rows], labels[rows])
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": _record(layers), "metrics": metrics}), reply_to=message)


@client_app.evaluate(mods=[compress()])
def evaluate(message: Message, context: Context) -> Message:
    metrics = MetricRecord({"num-examples": 1, "accuracy": _accuracy(message.content.array_records["arrays"])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """In the end, and after the first round, it waits until somebody has read Flower's counter."""
    config = context.run_config
    nodes, rounds, variant = int(str(config["nodes"])), int(str(config["rounds"])), str(config["variant"])
    folder, accuracies = Path(str(config["folder"])), list[float]()

    def measure(number: int, arrays: ArrayRecord) -> MetricRecord:
        accuracies.append(_accuracy(arrays))
        if number in (1, rounds):
            (folder / "measured").write_text(json.dumps(accuracies))
            (folder / "measured").rename(folder / f"{number}.json")
            while not (folder / f"{number}.counted").exists():
                time.sleep(0.2)
        return MetricRecord({"accuracy": accuracies[-1]})

    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(1)
    rng = np.random.default_rng(0)
    shapes = {"fc1.weight": (128, 784), "fc1.bias": (128,), "fc2.weight": (10, 128), "fc2.bias": (10,)}
    start = {name: rng.uniform(-1, 1, shape) / np.sqrt(784 if "1" in name else 128) for name, shape in shapes.items()}
    layers = {name: value.astype(np.float32) for name, value in start.items()}
    _strategy(variant, nodes).start(grid, _record(layers), num_rounds=rounds, evaluate_fn=measure)


def _strategy(variant: str, nodes: int) -> Strategy:
    everybody = {"min_train_nodes": nodes, "min_evaluate_nodes": nodes, "min_available_nodes": nodes}
    if variant == "FedSparQ":
        return FedSparQ(METHOD, fraction_evaluate=1.0, **everybody)  # type: ignore[arg-type]
    if variant == "one-bit":
        return FedSparQ(METHOD, first_model="one-bit", fraction_evaluate=1.0, **everybody)  # type: ignore[arg-type]
    plain = FedAvg(**everybody)  # type: ignore[arg-type]
    return plain if variant == "plain" else Compressed(plain, METHOD)


def _examples(part: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    images, labels = getattr(load("mnist-mini"), part)
    return images.reshape(len(labels), -1).astype(np.float32) / 255, labels


def _step(layers: Layers, images: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
    """One step of SGD on the cross-entropy, in place."""
    hidden, scores = _forward(layers, images)
    scores -= scores.max(axis=1, keepdims=True)
    error = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    error *= RATE / len(labels)
    back = (error @ layers["fc2.weight"]) * (hidden > 0)
    layers["fc2.weight"] -= error.T @ hidden
    layers["fc2.bias"] -= error.sum(axis=0)
    layers["fc1.weight"] -= back.T @ images
    layers["fc1.bias"] -= back.sum(axis=0)


def _forward(layers: Layers, images: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    hidden = np.maximum(images @ layers["fc1.weight"].T + layers["fc1.bias"], 0)
    return hidden, hidden @ layers["fc2.weight"].T + layers["fc2.bias"]


def _accuracy(arrays: ArrayRecord) -> float:
    images, labels = _examples("test")
    return float(100 * (_forward(_layers(arrays), images)[1].argmax(axis=1) == labels).mean())


def _layers(arrays: ArrayRecord) -> Layers:
    return {name: array.numpy().copy() for name, array in arrays.items()}


def _record(layers: Layers) -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in layers.items()})
