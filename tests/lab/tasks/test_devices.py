"""Devices: what is chosen, what is refused, and that a GPU learns what a CPU learns."""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedsparq.errors import OptionError
from fedsparq.lab.tasks import Training, devices
from fedsparq.lab.tasks.supervised import Supervised

SMALL = {"clients": 2, "train_limit": 200, "test_limit": 100, "seed": 3}
GPU = next((name for name in ("cuda", "mps") if getattr(torch, name).is_available()), None)
needs_gpu = pytest.mark.skipif(GPU is None, reason="only a GPU can show it, and none is here")


def test_auto_takes_what_is_here():
    assert devices.select_device("auto").type == (GPU or "cpu")
    assert devices.select_device("cpu").type == "cpu"
    assert Supervised(**SMALL, device="cpu").device == "cpu"


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_missing_is_named_with_those_that_are_here(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(OptionError, match=rf"device='{device}' is not possible: torch .* finds only cpu here"):
        Supervised(**SMALL, device=device)
    with pytest.raises(OptionError, match="choose from auto, cuda, mps, cpu"):
        devices.select_device("tpu")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is set")
def test_memory_that_was_freed_is_used_again_without_a_page_fault():
    """In a new process: what is set cannot be taken back."""
    script = """
import resource
import numpy as np
from fedsparq.lab.tasks.devices import prepare_process
prepare_process()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
array = np.zeros(500_000, np.float32)
array.copy()
before = faults()
for _ in range(100):
    array.copy()
print(faults() - before)
"""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", script], env=plain, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 500, "each copy has 489 pages"


@needs_gpu
@pytest.mark.parametrize("model", ["mlp", "lenet5", "resnet18"])
def test_a_gpu_learns_what_a_cpu_learns(model):
    there = Supervised(**SMALL, model=model, device=GPU, training=Training(lr=0.01))
    here = Supervised(**SMALL, model=model, training=Training(lr=0.01))
    start = here.initial()
    assert np.array_equal(there.initial().vector, start.vector)
    ours, exact = there.train(0, start, 1, None).update, here.train(0, start, 1, None).update
    assert np.linalg.norm(ours - exact) < 0.01 * np.linalg.norm(exact)
    assert there.evaluate(start)["loss"] == pytest.approx(here.evaluate(start)["loss"], rel=0.02)


@needs_gpu
def test_auto_trains_on_the_gpu():
    task = Supervised(**SMALL, device="auto")
    task.train(0, task.initial(), 1, None)
    assert task.network.vector.device.type == task.device == GPU
