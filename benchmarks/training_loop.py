"""Our local training against a bare torch loop that takes the same SGD steps on the same data.

The bare loop is as quick as one would write it by hand: images normalised beforehand, batches by index, no DataLoader.
Both run in this process on one thread, by turns; reported is the ratio of the medians (below 1: ours is quicker).

    python benchmarks/training_loop.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from torch import nn

from fedsparq.errors import DataError
from fedsparq.lab.tasks import Dataset, Training, load, models
from fedsparq.lab.tasks.training import FlatModel, train
from fedsparq.rules import Proximal

CASES = (("mnist", "mlp"), ("fashion-mnist", "lenet5"))
LR, BATCH_SIZE = 0.05, 32


def measure(repetitions: int = 15, examples: int = 3_200) -> dict[str, dict[str, float | str]]:
    """Seconds an epoch of each loop, and their ratio, for plain SGD and for SGD with a proximal term."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {
            f"{name}/{model}{' proximal' if mu else ''}": _compare(name, model, mu, repetitions, examples)
            for name, model in CASES
            for mu in (0.0, 0.01)
        }
    finally:
        torch.set_num_threads(threads)


def _compare(name: str, model: str, mu: float, repetitions: int, examples: int) -> dict[str, float | str]:
    dataset = _load(name, examples)
    images = torch.from_numpy(dataset.train[0].astype(np.float32)).div_(255).sub_(dataset.mean[0])
    images.div_(dataset.std[0])
    labels = torch.from_numpy(dataset.train[1])
    indices = np.arange(examples)
    flat = FlatModel(_build(model, dataset))
    bare = _build(model, dataset)
    options, rule = Training(lr=LR, batch_size=BATCH_SIZE), Proximal(mu)
    hook = (lambda gradient, weights, start: rule.gradient(gradient, weights, start, {})) if mu else None

    def ours(seed: int) -> None:
        train(flat, dataset, indices, options, seed, hook)

    def theirs(seed: int) -> None:
        _bare_epoch(bare, images, labels, seed)

    times: dict[Callable[[int], None], list[float]] = {ours: [], theirs: []}
    for repetition in range(repetitions + 1):
        for loop in (ours, theirs) if repetition % 2 else (theirs, ours):
            start = time.perf_counter()
            loop(repetition)
            times[loop].append(time.perf_counter() - start)
    ours_s, bare_s = (median(times[loop][1:]) for loop in (ours, theirs))
    return {"dataset": dataset.name, "ours_s": ours_s, "bare_s": bare_s, "ratio": ours_s / bare_s}


def _bare_epoch(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, seed: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
    model.train()
    for batch in torch.split(order, BATCH_SIZE):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _build(model: str, dataset: Dataset) -> nn.Module:
    return models.build(model, models.Signature.of(dataset), seed=0)


def _load(name: str, examples: int) -> Dataset:
    """The set itself, or where it is missing the embedded one, which has images of the same size."""
    try:
        return load.load(name, train_limit=examples)
    except DataError:
        return load.load("mnist-mini", train_limit=examples)


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
