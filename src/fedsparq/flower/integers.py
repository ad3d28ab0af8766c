"""Whole numbers on their way through strategies that know only floats."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any
from weakref import ref

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedsparq.flower.privacy import clip_of
from fedsparq.flower.records import to_array, view
from fedsparq.flower.wrappers import adds_noise

Given = ref[ArrayRecord]
"""A node's arrays as a strategy was given them. One that clips replies puts a record of its own in their place."""


class Integers:
    """What nodes say of a model's integer arrays in a round.

    Noise of real numbers covers no integer: under differential privacy, inside or around, the server's own values stay.
    Strategies that are known to clip are not shown integers, since clipping multiplies. Other strategies average them
    as floats, which have no room for large ones: where all nodes say the same, that is taken as it is.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._withholds = adds_noise(strategy)
        self._clips_on_clients = self._clips_replies = False
        self._low: dict[str, NDArray[Any]] = {}
        self._high: dict[str, NDArray[Any]] = {}

    def configured(self, messages: Iterable[Message]) -> None:
        """Note whether a strategy, this one or one around it, tells clients to clip."""
        self._clips_on_clients = any(clip_of(message.content) < math.inf for message in messages)

    def begin(self) -> None:
        self._low, self._high, self._clips_replies = {}, {}, False

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

    def given(self, reply: Message) -> Given | None:
        """The arrays of a reply as a strategy is given them."""
        arrays = _only_record(reply)
        return None if arrays is None else ref(arrays)

    def given_back(self, reply: Message, given: Given | None) -> None:
        """Note whether a strategy put arrays of its own into a reply: it clips, whatever it is called."""
        self._clips_replies |= given is not None and given() is not _only_record(reply)

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
        private = self._withholds or self._clips_on_clients or self._clips_replies
        out = {}
        for name in [*before, *(name for name in cast if name not in before)]:
            if private and name in before and _whole(before[name].dtype):
                out[name] = before[name]
            elif name in cast:
                out[name] = cast[name]
                if name in self._low and _whole(cast[name].dtype):
                    out[name] = to_array(self._agreed(name, view(cast[name]), view(aggregated[name])))
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


def _only_record(reply: Message) -> ArrayRecord | None:
    records = list(reply.content.array_records.values()) if reply.has_content() else []
    return records[0] if len(records) == 1 else None
