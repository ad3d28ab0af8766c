"""Where a model is trained, and with which precision."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

from fedsparq.errors import OptionError

PRECISIONS = ("float32", "bfloat16")

_PROBED = "FEDSPARQ_BFLOAT16_WORKS"
"""Set for the processes that this one starts, so that each machine is probed once."""

_PROBE = """
import torch
from torch import nn
torch.set_num_threads(1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    image = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 32))
    states, _ = nn.LSTM(32, 32, 2, batch_first=True)(image(torch.randn(32, 3, 8, 8)).view(4, 8, 32))
    heads = nn.LayerNorm(32)(states).view(4, 8, 2, 16).transpose(1, 2)
    nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).float().square().sum().backward()
"""


def choose(device: str) -> torch.device:
    """A device by name; ``auto`` is the first of cuda, mps and cpu that is here."""
    here: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
        "cpu": lambda: True,
    }
    if device == "auto":
        return torch.device(next(name for name, found in here.items() if found()))
    if device not in here:
        raise OptionError(f"unknown device {device!r}: choose from {', '.join(['auto', *here])}")
    if not here[device]():
        found = ", ".join(name for name, is_here in here.items() if is_here())
        raise OptionError(f"device={device!r} is not possible: torch {torch.__version__} finds only {found} here")
    return torch.device(device)


def check_precision(device: torch.device, precision: str) -> None:
    """Refuse bfloat16 where it does not work. On a CPU that is tried in a process that may die of it."""
    if precision not in PRECISIONS:
        raise OptionError(f"unknown precision {precision!r}: choose from {', '.join(PRECISIONS)}")
    if precision == "bfloat16" and device.type == "cpu" and os.environ.get(_PROBED) != torch.__version__:
        failure = _probe()
        if failure:
            raise OptionError(f"precision='bfloat16' does not work on this CPU ({failure}); use float32")
        os.environ[_PROBED] = torch.__version__
    if precision == "bfloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise OptionError(f"precision='bfloat16' does not work on this {torch.cuda.get_device_name()}; use float32")


def lowered(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """A forward pass in the given precision; the weights and their updates stay float32."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def own_randomness(device: torch.device) -> AbstractContextManager[Any]:
    """Torch's generators as they were, afterwards."""
    if device.type == "cpu":
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=[device.index or 0], device_type=device.type)


@cache
def _probe() -> str:
    """Why bfloat16 fails on this CPU; nothing if it works."""
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False)
    if done.returncode < 0:
        return f"a trial died of {signal.Signals(-done.returncode).name}"
    return (done.stderr.strip().splitlines() or ["a trial failed"])[-1] if done.returncode else ""
