"""Whole numbers on their way through strategies that know only floats."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedsparq.flower.records import to_array, view
from fedsparq.flower.wrappers import PRIVATE


class Integers:
    """What nodes say of a model's integer arrays in a round.

    Clipping multiplies updates, which whole numbers cannot bear: strategies that clip are not shown them, and the
    largest of the nodes' values is taken. Other strategies average them as floats, which have no room for large ones:
    where all nodes say the same, that is taken as it is.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._withholds = isinstance(strategy, PRIVATE)
        self._low: dict[str, NDArray[Any]] = {}
        self._high: dict[str, NDArray[Any]] = {}

    def begin(self) -> None:
        self._low, self._high = {}, {}

    def withheld(self, arrays: ArrayRecord) -> ArrayRecord:
        """The arrays that the strategy is shown."""
        if not self._withholds or not any(_whole(array.dtype) for array in arrays.values()):
            return arrays
        return ArrayRecord({name: array for name, array in arrays.items() if not _whole(array.dtype)})

    def put_into(self, message: Message, shown: ArrayRecord, arrays: ArrayRecord) -> None:
        """Give a message of the strategy's the integers that it was not shown."""
        for key, record in message.content.array_records.items():
            if list(record) == list(shown):
                whole = arrays if record is shown else ArrayRecord({n: record.get(n, arrays[n]) for n in arrays})
                message.content = RecordDict({**message.content, key: whole})

    def seen(self, arrays: ArrayRecord) -> ArrayRecord:
        """Note a node's integers; its arrays as the strategy is shown them."""
        for name, array in arrays.items():
            if _whole(array.dtype):
                value = view(array)
                if name in self._low and self._low[name].shape != value.shape:
                    continue
                self._low[name] = np.minimum(self._low.get(name, value), value)
                self._high[name] = np.maximum(self._high.get(name, value), value)
        return self.withheld(arrays)

    def whole(self, cast: ArrayRecord, aggregated: ArrayRecord, before: ArrayRecord) -> ArrayRecord:
        """The model in its own types and order, its integers exact."""
        out = {}
        for name in [*before, *(name for name in cast if name not in before)]:
            if name in cast:
                out[name] = cast[name]
                if name in self._low and _whole(cast[name].dtype):
                    out[name] = to_array(self._agreed(name, view(cast[name]), view(aggregated[name])))
            elif self._withholds and name in before and _whole(before[name].dtype):
                value = self._high.get(name)
                out[name] = before[name] if value is None else to_array(np.asarray(value))
        return ArrayRecord(out)

    def _agreed(self, name: str, rounded: NDArray[Any], result: NDArray[Any]) -> NDArray[Any]:
        """Rounded results, but what all nodes agreed on where the result is that, as far as floats can tell."""
        low, high = self._low[name], self._high[name]
        if low.shape != rounded.shape or low.dtype != rounded.dtype:
            return rounded
        near = np.isclose(result.astype(np.float64), low.astype(np.float64), rtol=1e-12, atol=1e-3)
        return np.asarray(np.where((low == high) & near, low, rounded), rounded.dtype)


def _whole(dtype: str) -> bool:
    return dtype.startswith(("int", "uint", "bool"))
