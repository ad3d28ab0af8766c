"""The local engine against a bare torch loop that does the same rounds: SGD, mean, evaluation. CPU seconds a round.

Both run in this process on one thread, by turns; given is the quickest round of each.

    python benchmarks/engine.py
"""

from __future__ import annotations

import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsparq.lab.engines.engine import build_task
from fedsparq.lab.experiments.run import run
from fedsparq.lab.specs import RunSpec, check
from fedsparq.lab.tasks import models
from fedsparq.lab.tasks.supervised import Supervised

CASES: dict[str, dict[str, Any]] = {
    "W1: MNIST / MLP, 10 of 100 clients": {"model": "mlp", "clients": 100},
    "W2: MNIST / LeNet-5, 10 of 100 clients": {"model": "lenet5", "clients": 100},
    "W3: MNIST / MLP, 100 of 1,000 clients": {"model": "mlp", "clients": 1000},
}
METHODS = ("fedavg", "fedsparq-adaptive")
ROUNDS, REPEATS, TEST_BATCH = 6, 3, 250


class BareLoop:
    """The rounds of a run by torch alone, on images normalized beforehand."""

    def __init__(self, spec: RunSpec) -> None:
        task = build_task(spec)
        assert isinstance(task, Supervised)
        data = task.data
        self.spec, self.parts = spec, [torch.from_numpy(part) for part in task.parts]
        self.train, self.test = (
            ((torch.from_numpy(x.astype(np.float32)) / 255 - data.mean[0]) / data.std[0], torch.from_numpy(np.array(y)))
            for x, y in (data.train, data.test)
        )
        self.module = models.build(spec.model, models.Signature.of(data), seed=0)
        self.model = {name: value.clone() for name, value in self.module.state_dict().items()}

    def round(self, number: int) -> None:
        sums = {name: torch.zeros_like(value) for name, value in self.model.items()}
        clients = self.spec.chosen_clients(number)
        examples = sum(len(self.parts[client]) for client in clients)
        for client in clients:
            self.module.load_state_dict(self.model)
            self._train(self.parts[client])
            for name, value in self.module.state_dict().items():
                sums[name].add_(value, alpha=len(self.parts[client]) / examples)
        self.model = sums
        self.module.load_state_dict(sums)
        self._evaluate()

    def _train(self, part: Tensor) -> None:
        optimizer = torch.optim.SGD(self.module.parameters(), lr=self.spec.training.lr)
        self.module.train()
        for batch in torch.split(part[torch.randperm(len(part))], self.spec.training.batch_size):
            optimizer.zero_grad()
            cross_entropy(self.module(self.train[0][batch]), self.train[1][batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    @torch.no_grad()
    def _evaluate(self) -> float:
        self.module.eval()
        batches = zip(*(torch.split(part, TEST_BATCH) for part in self.test), strict=True)
        return sum(cross_entropy(self.module(x), y, reduction="sum").item() for x, y in batches)


def bare(loop: BareLoop) -> float:
    marks = [time.process_time()]
    for number in range(1, ROUNDS):
        loop.round(number)
        marks.append(time.process_time())
    return quickest(marks)


def engine(spec: RunSpec) -> float:
    """Training, compression, messages, states on disk, checkpoints and evaluation; the first round is not counted."""
    marks: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        run(spec, Path(folder) / "run", callbacks=[lambda record: marks.append(time.process_time())])
    return quickest(marks)


def quickest(marks: list[float]) -> float:
    return min(end - start for start, end in pairwise(marks))


def measure() -> dict[str, Any]:
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, changes in CASES.items():
        usual = {
            "dataset": "mnist",
            "partition": "iid",
            "fraction": 0.1,
            "rounds": ROUNDS,
            "training": {"lr": 0.05, "batch_size": 32},
        }
        specs = [check(RunSpec, {**usual, **changes, "method": method}) for method in METHODS]
        loop, seconds = BareLoop(specs[0]), dict[str, list[float]]()
        for _ in range(REPEATS):
            seconds.setdefault("bare loop", []).append(bare(loop))
            for spec in specs:
                seconds.setdefault(spec.method, []).append(engine(spec))
        best = {key: min(values) for key, values in seconds.items()}
        ratios = {f"{method} / bare loop": best[method] / best["bare loop"] for method in METHODS}
        results[name] = {"CPU seconds a round": best, **ratios}
    return results


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
