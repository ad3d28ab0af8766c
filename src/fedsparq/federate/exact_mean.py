"""The mean of the arrays that travel exactly: statistics and other floats by weight, integers by their largest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.federate.serialized import Record, Serialized, same, to_array, view
from fedsparq.layout import Buffers

_LARGEST = 1e6
"""No statistic of a model in training is as large."""


def statistics_of(arrays: Record) -> Buffers | None:
    """All floats among arrays, as the method's server knows them: it limits how far they move, and averages them."""
    floats = [view(array).astype(np.float32).reshape(-1) for array in arrays.values() if _kind(array) == "f"]
    return Buffers(np.concatenate(floats), np.empty(0, np.int64)) if floats else None


class ExactMean:
    """A round of arrays that travel exactly. Arrays that no node changed stay as they are.

    Statistics of 16 and 32 bits are averaged by the server; this adds up what has no room there, as it comes or, where
    it is not known before the end which replies count (`held`), then.
    """

    def __init__(self, before: Record, held: bool) -> None:
        self._before, self._values = dict(before), {name: view(array) for name, array in before.items()}
        self._held: dict[int, tuple[Record, float]] | None = {} if held else None
        self._sums: dict[str, NDArray[Any]] = {}
        self._largest: dict[str, NDArray[Any]] = {}
        self._moved: set[str] = set()
        self._weights = 0.0

    def check(self, arrays: Record) -> None:
        """Refuse what cannot be averaged, or what no honest training gives."""
        for name, before in self._values.items():
            values = view(arrays[name])
            if (values.shape, values.dtype) != (before.shape, before.dtype):
                raise WireError(
                    f"the array {name!r} is {values.dtype}{list(values.shape)}, "
                    f"the model's is {before.dtype}{list(before.shape)}"
                )
            if values.dtype.kind == "f" and not np.abs(values).max(initial=0) <= _LARGEST:
                raise WireError(f"the statistic {name!r} is above {_LARGEST:,.0f}, or not a number")
            if values.dtype.kind not in "fiub" and not same(arrays[name], self._before[name]):
                kind = self._before[name].dtype
                raise WireError(f"the array {name!r} is of the type {kind}, which has no mean; cast it to float32")

    def add(self, node: int, arrays: Record, weight: float) -> None:
        if self._held is not None:
            self._held[node] = arrays, weight
            return
        self._weights += weight
        for name, array in arrays.items():
            if not same(array, self._before[name]):
                self._moved.add(name)
            values = view(array)
            if values.dtype.kind == "f" and values.dtype.itemsize > 4:
                self._sums[name] = self._sums.get(name, 0.0) + weight * values
            elif values.dtype.kind in "iub":
                self._largest[name] = np.maximum(self._largest.get(name, values), values)

    def close(self, shares: Mapping[int, float], server: Buffers | None) -> dict[str, Serialized]:
        """The next arrays, given by how much each node's reply counted and what the server made of statistics."""
        held, self._held = self._held or {}, None
        for node, (arrays, weight) in held.items():
            if shares.get(node, 0.0) > 0:
                self.add(node, arrays, weight * shares[node])
        averaged = dict(self._parts(server))
        return {name: self._next(name, array, averaged) for name, array in self._before.items()}

    def _next(self, name: str, array: Serialized, averaged: Mapping[str, NDArray[Any]]) -> Serialized:
        if name not in self._moved:
            return array
        if name in self._sums:
            return to_array(np.asarray(self._sums[name] / self._weights))
        return to_array(np.asarray(self._largest[name] if name in self._largest else averaged[name]))

    def _parts(self, server: Buffers | None) -> Iterator[tuple[str, NDArray[Any]]]:
        """The server's statistics by name, undoing `statistics_of`."""
        at = 0
        for name, values in self._values.items():
            if server is not None and values.dtype.kind == "f":
                part = server.statistics[at : at + values.size]
                yield name, part.reshape(values.shape).astype(values.dtype)
                at += values.size


def _kind(array: Serialized) -> str:
    return view(array).dtype.kind
