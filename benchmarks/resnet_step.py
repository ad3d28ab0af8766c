"""What makes a training step of ResNet-18 on CIFAR-10's images quicker, on one thread: milliseconds for an image and
the ratio to the step as it would be without, each way in a process of its own, by turns.

    python benchmarks/resnet_step.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from fedsparq.lab.tasks.devices import prepare_process
from fedsparq.lab.tasks.networks import ResNet18
from fedsparq.lab.tasks.training import FlatModel

WAYS = ("plain", "freed memory kept", "freed memory kept, channels last", "freed memory kept, batches of 128")
STEPS = 20


def measure(repetitions: int = 3) -> dict[str, Any]:
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(repetitions):
        for way in WAYS:
            done = subprocess.run([sys.executable, __file__, way], capture_output=True, text=True, check=True)
            times[way].append(float(done.stdout))
    plain = median(times["plain"])
    return {way: {"ms an image": 1e3 * median(found), "ratio": median(found) / plain} for way, found in times.items()}


def image_seconds(way: str) -> float:
    """Seconds a step takes for each image of a batch, the median of many."""
    torch.set_num_threads(1)
    if "kept" in way:
        prepare_process()
    layout = torch.channels_last if "channels last" in way else torch.contiguous_format
    batch = 128 if "128" in way else 32
    torch.manual_seed(0)
    model = FlatModel(ResNet18(inputs=(3, 32, 32), outputs=10))
    model.module.train()
    if layout is torch.channels_last:
        model.module.to(memory_format=layout)  # type: ignore[call-overload]
    images, labels = torch.randn(batch, 3, 32, 32).to(memory_format=layout), torch.randint(0, 10, (batch,))

    def step() -> None:
        model.gradient.zero_()
        cross_entropy(model.module(images), labels).backward()  # type: ignore[no-untyped-call]
        model.vector.add_(model.gradient, alpha=-0.01)

    times = []
    for _ in range(STEPS + 3):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return median(times[3:]) / batch


if __name__ == "__main__":
    print(image_seconds(sys.argv[1]) if len(sys.argv) > 1 else json.dumps(measure(), indent=2))
