"""Select the device of a model, and prepare a process that trains clients, one at a time."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fedsparq.errors import OptionError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""
_RETAINED_BYTES = 1 << 30
_LARGEST_IN_HEAP = 1 << 25
"""glibc's own limit: it ignores a larger number, and stays at 128 KiB."""


def select_device(name: str) -> torch.device:
    """Return a device by name; ``auto`` is the first of cuda, mps and cpu that is here."""
    here: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
        "cpu": lambda: True,
    }
    if name == "auto":
        return torch.device(next(name for name, found in here.items() if found()))
    if name not in here:
        raise OptionError(f"unknown device {name!r}: choose from {', '.join(['auto', *here])}")
    if not here[name]():
        found = ", ".join(name for name, is_here in here.items() if is_here())
        raise OptionError(f"device={name!r} is not possible: torch {torch.__version__} finds only {found} here")
    return torch.device(name)


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch's generators for a block, and restore them afterwards."""
    if device.type == "cpu":  # alone: torch.manual_seed formats tracebacks for three accelerators, which takes 1 ms
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield
    else:
        with torch.random.fork_rng(devices=[device.index or 0], device_type=device.type):
            torch.manual_seed(seed)
            yield


def prepare_process() -> None:
    """Give torch one thread, as the engines decide on parallelism, and keep the memory that a training step freed.

    glibc would map and clear the tensors of a large layer again in every step: a quarter of ResNet-18's time. Nothing
    changes where the user has set glibc's allocator, or where there is another.
    """
    torch.set_num_threads(1)
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
    is_set = any(name in os.environ for name in names) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") and not is_set else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
        mallopt(_TRIM_THRESHOLD, _RETAINED_BYTES)
