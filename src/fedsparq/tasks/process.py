"""A process that trains clients, one at a time."""

from __future__ import annotations

import ctypes
import os
import sys

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of glibc's `mallopt`."""
_KEPT = 1 << 30


def prepare_process() -> None:
    """One thread for torch: the engines decide on parallelism. What a training step freed is kept for the next."""
    torch.set_num_threads(1)
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Let glibc keep up to a gigabyte of freed memory in place of giving it back to the system.

    The tensors of a large layer would else be mapped and cleared anew in every step: a quarter of ResNet-18's time.
    Nothing changes where the user has set glibc's allocator, or where there is another.
    """
    if not sys.platform.startswith("linux") or _is_set():
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _KEPT)
        mallopt(_TRIM_THRESHOLD, _KEPT)


def _is_set() -> bool:
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
    return any(name in os.environ for name in names) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
