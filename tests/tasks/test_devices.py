"""Devices and precisions: what is chosen, what is refused, and that a GPU learns what a CPU learns."""

import subprocess

import numpy as np
import pytest
import torch

from fedsparq.errors import OptionError
from fedsparq.tasks import Training, devices
from fedsparq.tasks.supervised import Supervised

SMALL = {"clients": 2, "train_limit": 200, "test_limit": 100, "seed": 3}
GPU = next((name for name in ("cuda", "mps") if getattr(torch, name).is_available()), None)
needs_gpu = pytest.mark.skipif(GPU is None, reason="only a GPU can show it, and none is here")


@pytest.fixture(autouse=True)
def _unprobed(monkeypatch):
    devices._probe.cache_clear()
    monkeypatch.delenv(devices._PROBED, raising=False)
    yield
    devices._probe.cache_clear()


def test_auto_takes_what_is_here():
    assert devices.choose("auto").type == (GPU or "cpu")
    assert devices.choose("cpu").type == "cpu"
    assert Supervised(**SMALL, device="cpu").device == "cpu"


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_missing_is_named_with_those_that_are_here(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(OptionError, match=rf"device='{device}' is not possible: torch .* finds only cpu here"):
        Supervised(**SMALL, device=device)
    with pytest.raises(OptionError, match="choose from auto, cuda, mps, cpu"):
        devices.choose("tpu")


def died(code: int, error: str = ""):
    return lambda *_args, **_options: subprocess.CompletedProcess([], code, "", error)


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (-4, "", "a trial died of SIGILL"),
        (1, "Traceback\nRuntimeError: no such kernel", "RuntimeError: no such kernel"),
    ],
)
def test_bfloat16_that_would_kill_the_process_is_found_out_in_another(monkeypatch, code, error, message):
    monkeypatch.setattr(subprocess, "run", died(code, error))
    with pytest.raises(OptionError, match=rf"bfloat16' does not work on this CPU \({message}\); use float32"):
        Supervised(**SMALL, precision="bfloat16")


def test_each_machine_is_probed_once(monkeypatch):
    calls = []
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: calls.append(a) or died(0)())
    devices.check_precision(torch.device("cpu"), "float32")
    assert calls == []
    for _ in range(2):
        devices.check_precision(torch.device("cpu"), "bfloat16")
        devices._probe.cache_clear()  # as in a worker process, which inherits the environment
    assert len(calls) == 1
    with pytest.raises(OptionError, match="choose from float32, bfloat16"):
        devices.check_precision(torch.device("cpu"), "float16")


@pytest.mark.parametrize("model", ["mlp", "lenet5"])
def test_bfloat16_on_this_cpu_learns_nearly_the_same(model):
    try:
        low = Supervised(**SMALL, model=model, precision="bfloat16", training=Training(lr=0.05))
    except OptionError as error:
        pytest.skip(str(error))
    high = Supervised(**SMALL, model=model, training=Training(lr=0.05))
    start = high.initial()
    ours, exact = low.train(0, start, 1, None).update, high.train(0, start, 1, None).update
    assert ours.dtype == np.float32
    assert not np.array_equal(ours, exact)
    assert np.linalg.norm(ours - exact) < 0.1 * np.linalg.norm(exact)
    assert low.evaluate(start)["loss"] == pytest.approx(high.evaluate(start)["loss"], rel=0.02)


@needs_gpu
@pytest.mark.parametrize("model", ["mlp", "lenet5", "resnet18"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_gpu_learns_what_a_cpu_learns(model, precision):
    there = Supervised(**SMALL, model=model, device=GPU, precision=precision, training=Training(lr=0.01))
    here = Supervised(**SMALL, model=model, training=Training(lr=0.01))
    start = here.initial()
    assert np.array_equal(there.initial().vector, start.vector)
    ours, exact = there.train(0, start, 1, None).update, here.train(0, start, 1, None).update
    assert np.linalg.norm(ours - exact) < (0.01 if precision == "float32" else 0.2) * np.linalg.norm(exact)
    assert there.evaluate(start)["loss"] == pytest.approx(here.evaluate(start)["loss"], rel=0.02)


@needs_gpu
def test_auto_trains_on_the_gpu():
    task = Supervised(**SMALL, device="auto")
    task.train(0, task.initial(), 1, None)
    assert task.network.vector.device.type == task.device == GPU
