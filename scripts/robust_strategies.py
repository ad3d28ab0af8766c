"""What compression does to Flower's robust strategies, and ours beside them, measured: the table in docs/FLOWER.md.

    python scripts/robust_strategies.py [--rounds 10] [--seeds 3] [--strategies Krum FedSparQ]

Ten nodes share the small MNIST by Dirichlet(0.5). The first number is the accuracy with all of them honest, the
second with two that send the model less five times their update. Messages travel serialized, on a grid in this process.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg, Krum, Strategy

from fedsparq import Model
from fedsparq.flower import Compressed, FedSparQ, compress
from fedsparq.lab.engines.engine import build_task
from fedsparq.lab.specs import RunSpec
from fedsparq.lab.tasks import Task

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from inprocess_grid import InProcessGrid

NODES, HOSTILE = 10, 2
STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "FedAvg": lambda: FedAvg(fraction_evaluate=0.0),
    "FedMedian": lambda: FedMedian(fraction_evaluate=0.0),
    "FedTrimmedAvg (beta 0.2)": lambda: FedTrimmedAvg(fraction_evaluate=0.0, beta=0.2),
    "Krum": lambda: Krum(fraction_evaluate=0.0, num_malicious_nodes=HOSTILE),
}
OURS = {"FedSparQ, aggregator robust": "robust"}
METHODS: dict[str, tuple[str, dict] | None] = {
    "plain": None,
    "float16": ("float16", {}),
    "fedpaq": ("fedpaq", {}),
    "fedsparq": ("fedsparq", {}),
    "fedsparq-adaptive": ("fedsparq-adaptive", {"bits": 0.3}),
    "stc": ("stc", {}),
}


def client(task: Task, hostile: int, folder: str | None) -> ClientApp:
    app = ClientApp()

    @app.train(mods=[compress(state=folder)] if folder else [])
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        start = Model(*task.layout.flatten(_numpy(message.content["arrays"])))
        trained = task.train(number, start, int(message.content["config"]["server-round"]), None)
        step = np.float32(-5 if number < hostile else 1)
        after = task.layout.unflatten(start.vector + step * trained.update, trained.buffers)
        metrics = MetricRecord({"num-examples": trained.examples})
        return Message(RecordDict({"arrays": _record(after), "metrics": metrics}), reply_to=message)

    return app


def play(strategy: str, method: str, hostile: int, rounds: int, seed: int) -> tuple[float, int]:
    """The accuracy at the end, and the bytes that all nodes sent."""
    task = build_task(RunSpec(clients=NODES, partition="dirichlet", seed=seed))
    chosen, start = METHODS[method], task.initial()
    with tempfile.TemporaryDirectory() as folder:
        grid = InProcessGrid([client(task, hostile, folder if chosen or strategy in OURS else None)] * NODES)
        whole: Strategy
        if strategy in OURS:
            name, options = chosen or ("fedavg", {})
            whole = FedSparQ(name, aggregator=OURS[strategy], **options)
        else:
            inner = STRATEGIES[strategy]()
            whole = Compressed(inner, chosen[0], **chosen[1]) if chosen else inner
        result = whole.start(grid, _record(task.layout.unflatten(start.vector, start.buffers)), num_rounds=rounds)
    end = Model(*task.layout.flatten(_numpy(result.arrays)))
    return task.evaluate(end)["accuracy"], sum(grid.up.values())


def _numpy(arrays: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in arrays.items()}


def _record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--strategies", nargs="+", default=[""], help="those whose names begin so; all by default")
    options = parser.parse_args()
    wanted = [name for name in (*STRATEGIES, *OURS) if name.startswith(tuple(options.strategies))]
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)

    accuracies: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    sent: dict[str, list[int]] = defaultdict(list)
    for seed, strategy, method, hostile in product(range(options.seeds), wanted, METHODS, (0, HOSTILE)):
        accuracy, size = play(strategy, method, hostile, options.rounds, seed)
        print(seed, strategy, method, hostile, f"{accuracy:.2f}", size, file=sys.stderr, flush=True)
        accuracies[strategy, method, hostile].append(accuracy)
        sent[method].append(size)

    print("| strategy | " + " | ".join(METHODS) + " |\n|" + "---|" * (1 + len(METHODS)))
    for strategy in wanted:
        pairs = [[statistics.mean(accuracies[strategy, method, n]) for n in (0, HOSTILE)] for method in METHODS]
        print(f"| {strategy} | " + " | ".join(f"{honest:.1f} / {attacked:.1f}" for honest, attacked in pairs) + " |")
    plain = statistics.mean(sent["plain"])
    print("| bytes up | " + " | ".join(f"1/{plain / statistics.mean(sent[method]):.1f}" for method in METHODS) + " |")


if __name__ == "__main__":
    main()
