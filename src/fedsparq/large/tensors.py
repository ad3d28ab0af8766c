"""Named tensors of floats, read a part at a time: from a safetensors file, from arrays, or from an iterator."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.archive import ArchiveError, TensorFile, map_file
from fedsparq.errors import UpdateError
from fedsparq.large.pieces import Shapes, Tensors
from fedsparq.layout import Vector

FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}
Named = Iterable[tuple[str, Any]]
Given = str | os.PathLike[str] | Mapping[str, Any] | Callable[[], Named]
"""How an update may be given: a safetensors file, arrays (or memory maps) by name, or a function that begins an
iteration over (name, array): it is called again for each pass."""


def tensors_of(given: Given | Tensors) -> Tensors:
    """Open an update, whatever it is given as."""
    if isinstance(given, str | os.PathLike):
        return SafetensorsFile(Path(given))
    if isinstance(given, Mapping):
        return _Iterated(given.items, reuses_memory=False)
    if callable(given):
        return _Iterated(given)
    if hasattr(given, "shapes") and hasattr(given, "part"):
        return given
    raise UpdateError(
        f"the update is {type(given).__name__}; it must be a safetensors file, arrays by name, or a function that "
        "begins an iteration over (name, array)"
    )


class SafetensorsFile(TensorFile):
    """A safetensors file as a memory map; tensors in the order in which they lie."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            super().__init__(map_file(self.path))
        except OSError as error:
            raise UpdateError(f"cannot read {self.path}: {error.strerror or error}") from None
        except ArchiveError as error:
            raise UpdateError(f"cannot read {self.path}: {error}") from None

    @property
    def shapes(self) -> Shapes:
        return {name: entry.shape for name, entry in self.entries.items()}

    def part(self, name: str, start: int, stop: int) -> Vector:
        entry = self.entries[name]
        if entry.dtype not in FLOATS:
            raise UpdateError(f"tensor {name!r} of {self.path} is of {entry.dtype}; only floats can be compressed")
        raw = self.raw(name).view(FLOATS[entry.dtype])[start:stop]
        if entry.dtype == "BF16":
            return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return raw.astype(np.float32, copy=not raw.flags.aligned)


def rounded_to(dtype: str, values: Vector) -> NDArray[Any]:
    """Return values as a file of this safetensors type holds them, rounded to the nearest."""
    if dtype != "BF16":
        return values.astype(FLOATS[dtype], copy=False)
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype("<u2")


class _Iterated:
    """One array at a time. A first pass learns the shapes; every other must give the same."""

    def __init__(self, begin: Callable[[], Named], reuses_memory: bool = True) -> None:
        self._begin, self._copy = begin, reuses_memory
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, array in begin():
            if name in self.shapes:
                raise UpdateError(f"the update has two tensors called {name!r}")
            self.shapes[str(name)] = _floats(name, array).shape
        self._remaining: Iterator[tuple[str, Any]] = iter(())
        self._name: str | None = None
        self._array: NDArray[Any] = np.empty(0, np.float32)

    def part(self, name: str, start: int, stop: int) -> Vector:
        if name != self._name:
            self._find(name)
        return self._array.reshape(-1)[start:stop].astype(np.float32, copy=self._copy)

    def _find(self, name: str) -> None:
        for remaining in (self._remaining, iter(self._begin())):
            self._remaining = remaining
            for found, array in remaining:
                if found == name:
                    self._name, self._array = name, _floats(name, array)
                    if self._array.shape != self.shapes[name]:
                        raise UpdateError(f"tensor {name!r} had another shape in the previous pass")
                    return
        raise UpdateError(f"tensor {name!r} did not come again: the function must begin a new iteration at each call")


def _floats(name: str, array: Any) -> NDArray[Any]:
    floats: NDArray[Any] = np.asarray(array)
    if floats.dtype.kind != "f":
        raise UpdateError(f"tensor {name!r} is of {floats.dtype}; only floats can be compressed")
    return floats
