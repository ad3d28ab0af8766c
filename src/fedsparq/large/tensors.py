"""Named tensors of floats, read a part at a time: from a safetensors file, from arrays, or from an iterator."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import UpdateError
from fedsparq.large.pieces import Shapes
from fedsparq.layout import Vector

FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}
_SIZES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
_MOST_HEADER = 100_000_000
"""What the safetensors library itself accepts."""

Named = Iterable[tuple[str, Any]]
Given = str | os.PathLike[str] | Mapping[str, Any] | Callable[[], Named]
"""How an update may be given: a safetensors file, arrays (or memory maps) by name, or a function that begins an
iteration over (name, array): it is called again for each pass."""


class Tensors(Protocol):
    """Tensors whose shapes are known, and whose values can be read a part at a time, more than once."""

    @property
    def shapes(self) -> Shapes: ...

    def part(self, name: str, start: int, stop: int) -> Vector:
        """Coordinates of one tensor in C order, as float32; not to be changed."""


def tensors_of(given: Given | Tensors) -> Tensors:
    """Whatever an update is given as."""
    if isinstance(given, str | os.PathLike):
        return SafetensorsFile(Path(given))
    if isinstance(given, Mapping):
        return _Arrays(given)
    if callable(given):
        return _Iterated(given)
    if hasattr(given, "shapes") and hasattr(given, "part"):
        return given
    raise UpdateError(
        f"an update is a safetensors file, arrays by name, or a function that begins an iteration over (name, array); "
        f"got {type(given).__name__}"
    )


class Entry(NamedTuple):
    """Where a tensor lies in a safetensors file, counted from the end of its header."""

    dtype: str
    shape: tuple[int, ...]
    first: int
    end: int


class SafetensorsFile:
    """A safetensors file as a memory map; tensors in the order in which they lie."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            self.size = self.path.stat().st_size
            with self.path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if not 0 < length <= min(_MOST_HEADER, self.size - 8):
                    raise ValueError(f"a header of {length:,} bytes does not fit a file of {self.size:,}")
                header = json.loads(file.read(length))
            self.metadata: dict[str, str] = header.pop("__metadata__", {})
            self.start = 8 + length
            entries = {str(name): _entry(**about) for name, about in header.items()}
        except OSError as error:
            raise UpdateError(f"cannot read {self.path}: {error.strerror or error}") from None
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UpdateError(f"{self.path} is not a safetensors file: {error}") from None
        self.entries = dict(sorted(entries.items(), key=lambda item: (item[1].first, item[1].end)))
        end = 0
        for name, entry in self.entries.items():
            if entry.first != end or entry.end < end:
                raise UpdateError(f"{self.path} is not a safetensors file: tensor {name!r} overlaps, or leaves a gap")
            end = entry.end
        if self.start + end != self.size:
            raise UpdateError(f"{self.path} has {self.size:,} bytes, its header tells of {self.start + end:,}: damaged")
        self._data: NDArray[np.uint8] = (
            np.memmap(self.path, np.uint8, "r", self.start, (end,)) if end else np.empty(0, np.uint8)
        )

    @property
    def shapes(self) -> Shapes:
        return {name: entry.shape for name, entry in self.entries.items()}

    def part(self, name: str, start: int, stop: int) -> Vector:
        entry = self.entries[name]
        if entry.dtype not in FLOATS:
            raise UpdateError(f"tensor {name!r} of {self.path} is of {entry.dtype}; only floats can be compressed")
        kind = np.dtype(FLOATS[entry.dtype])
        raw = self._data[entry.first + start * kind.itemsize : entry.first + stop * kind.itemsize].view(kind)
        if entry.dtype == "BF16":
            return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return raw.astype(np.float32, copy=not raw.flags.aligned)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor as they are."""
        entry = self.entries[name]
        return self._data[entry.first : entry.end]


def rounded_to(dtype: str, values: Vector) -> NDArray[Any]:
    """Values as a file of this safetensors type holds them, rounded to the nearest."""
    if dtype != "BF16":
        return values.astype(FLOATS[dtype], copy=False)
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype("<u2")


def _entry(dtype: str, shape: list[int], data_offsets: list[int]) -> Entry:
    first, end = (int(offset) for offset in data_offsets)
    sizes = tuple(int(n) for n in shape)
    if any(n < 0 for n in sizes) or end - first != math.prod(sizes) * _SIZES.get(dtype, 1):
        raise ValueError(f"a tensor of {dtype}{list(sizes)} cannot have {end - first:,} bytes")
    return Entry(dtype, sizes, first, end)


class _Arrays:
    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = {str(name): _floats(str(name), array) for name, array in arrays.items()}

    @property
    def shapes(self) -> Shapes:
        return {name: array.shape for name, array in self._arrays.items()}

    def part(self, name: str, start: int, stop: int) -> Vector:
        return self._arrays[name].reshape(-1)[start:stop].astype(np.float32, copy=False)


class _Iterated:
    """One array at a time. A first pass learns the shapes; every other must give the same."""

    def __init__(self, begin: Callable[[], Named]) -> None:
        self._begin = begin
        self._shapes: dict[str, tuple[int, ...]] = {}
        for name, array in begin():
            if name in self._shapes:
                raise UpdateError(f"the update has two tensors called {name!r}")
            self._shapes[str(name)] = _floats(name, array).shape
        self._rest: Iterator[tuple[str, Any]] = iter(())
        self._name: str | None = None
        self._array: NDArray[Any] = np.empty(0, np.float32)

    @property
    def shapes(self) -> Shapes:
        return self._shapes

    def part(self, name: str, start: int, stop: int) -> Vector:
        if name != self._name:
            self._find(name)
        return self._array.reshape(-1)[start:stop].astype(np.float32)  # the iterator may use its memory again

    def _find(self, name: str) -> None:
        for rest in (self._rest, iter(self._begin())):
            self._rest = rest
            for found, array in rest:
                if found == name:
                    self._name, self._array = name, _floats(name, array)
                    if self._array.shape != self._shapes[name]:
                        raise UpdateError(f"tensor {name!r} had another shape in the pass before")
                    return
        raise UpdateError(
            f"tensor {name!r} did not come again: an update that is iterated over must begin anew at each call"
        )


def _floats(name: str, array: Any) -> NDArray[Any]:
    floats: NDArray[Any] = np.asarray(array)
    if floats.dtype.kind != "f":
        raise UpdateError(f"tensor {name!r} is of {floats.dtype}; only floats can be compressed")
    return floats
