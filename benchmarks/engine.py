"""The local engine against a bare torch loop that takes the same SGD steps on the same data, in one run."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsparq.lab.experiments.run import run
from fedsparq.lab.specs import RunSpec, check
from fedsparq.lab.tasks.supervised import Supervised

CASES = {
    "MNIST / MLP": {"dataset": "mnist", "model": "mlp", "training": {"lr": 0.1}},
    "Fashion-MNIST / LeNet-5": {"dataset": "fashion-mnist", "model": "lenet5", "training": {"lr": 0.05}},
}
ROUNDS = 2
REPEATS = 3


def bare_loop(task: Supervised) -> float:
    """Seconds for what the clients of ROUNDS rounds do: forward, backward and SGD over normalised batches."""
    images, labels = (torch.from_numpy(np.array(part)) for part in task.data.train)
    pixels = (images.float() / 255 - task.data.mean[0]) / task.data.std[0]
    module, options = task.network.module, task.training
    optimizer = torch.optim.SGD(module.parameters(), lr=options.lr)
    start = time.perf_counter()
    for _ in range(ROUNDS):
        for part in task.parts:
            order = torch.from_numpy(part)[torch.randperm(len(part))]
            for batch in torch.split(order, options.batch_size):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(module(pixels[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return time.perf_counter() - start


def supervised_task(spec: RunSpec) -> Supervised:
    return Supervised(
        dataset=spec.dataset, model=spec.model, clients=spec.clients, test_limit=100, training=spec.training
    )


def engine(spec: RunSpec, workers: int) -> float:
    """Seconds from the first to the last round: training, compression, messages, states on disk and checkpoints."""
    marks: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        run(spec, Path(folder) / "run", workers=workers, callbacks=[lambda record: marks.append(time.perf_counter())])
    return marks[-1] - marks[0]


def measure() -> dict[str, Any]:
    """Medians over alternating repetitions; one round to warm up is not counted."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, changes in CASES.items():
        base = check(RunSpec, {"clients": 4, "rounds": ROUNDS + 1, "test_limit": 100, **changes})
        seconds: dict[str, list[float]] = {"bare loop": [], "fedavg": [], "fedsparq": [], "fedsparq, 2 workers": []}
        for _ in range(REPEATS):
            seconds["bare loop"].append(bare_loop(supervised_task(base)))
            for method in ("fedavg", "fedsparq"):
                seconds[method].append(engine(base.model_copy(update={"method": method}), 1))
            seconds["fedsparq, 2 workers"].append(engine(base.model_copy(update={"method": "fedsparq"}), 2))
        medians = {key: statistics.median(values) for key, values in seconds.items()}
        results[name] = {
            "seconds": medians,
            "fedavg / bare loop": medians["fedavg"] / medians["bare loop"],
            "fedsparq / bare loop": medians["fedsparq"] / medians["bare loop"],
            "1 worker / 2 workers": medians["fedsparq"] / medians["fedsparq, 2 workers"],
        }
    return results
