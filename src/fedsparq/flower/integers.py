"""Integers on their way through strategies that know only floats, and floats through those that clip."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from fedsparq.federate.exact import ArraySpec
from fedsparq.federate.serialized import same, to_array, view
from fedsparq.flower.advice import adds_noise
from fedsparq.flower.records import cast, clip_of, to_record

_FLOATS = ("float16", "float32")


class Integers:
    """The integer arrays of a model in a round.

    Noise of real numbers covers no integer: under differential privacy the server's own values stay. Strategies that
    are known to clip are not shown integers, since clipping multiplies; of floats they are shown float64, since what
    was clipped must not be rounded before noise is added. Other strategies average integers as floats, which have no
    room for large ones: those that no node changed stay exact.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.clips = adds_noise(strategy)
        """Whether the strategy is known to clip and to add noise."""
        self._clipped = False
        self._model, self._changed = ArrayRecord(), set[str]()

    def begin(self, model: ArrayRecord) -> ArrayRecord:
        """Start a round; the model as the strategy is shown it."""
        self._model, self._changed, self._clipped = model, set(), False
        return self._shown(model)

    def configured(self, messages: Iterable[Message]) -> None:
        """Note whether a strategy tells clients to clip."""
        self._clipped |= any(clip_of(message.content) < math.inf for message in messages)

    def given_back(self, reply: Message, given: ArrayRecord | None) -> None:
        """Note whether a strategy put arrays of its own into a reply that it was given: it clips, whatever its name."""
        self._clipped |= given is not None and given is not only_record(reply)

    def put_into(self, message: Message, shown: ArrayRecord) -> None:
        """Give a message of the strategy's the integers that it was not shown."""
        for key, record in message.content.array_records.items() if shown is not self._model else ():
            if list(record) == list(shown):
                whole = ArrayRecord({name: record.get(name, self._model[name]) for name in self._model})
                message.content = RecordDict({**message.content, key: self._model if record is shown else whole})

    def seen(self, arrays: ArrayRecord) -> ArrayRecord:
        """A node's arrays as the strategy is shown them."""
        for name, array in arrays.items():
            if _is_integer(array.dtype) and not (name in self._model and same(array, self._model[name])):
                self._changed.add(name)
        if self.clips:
            floats = {name for name, array in arrays.items() if array.dtype in _FLOATS}
            wide = {name: to_array(view(arrays[name]).astype(np.float64)) for name in floats}
            arrays = to_record({name: wide.get(name, array) for name, array in arrays.items()})
        return self._shown(arrays)

    def whole(self, aggregated: ArrayRecord) -> ArrayRecord:
        """The next model in its own types and order."""
        arrays, before = cast(aggregated, ArraySpec.of(self._model)), self._model
        private = self.clips or self._clipped
        for name, array in before.items():
            stays = private or (name in arrays and name not in self._changed)
            if _is_integer(array.dtype) and stays:
                arrays[name] = array
        ordered = [*(name for name in before if name in arrays), *(name for name in arrays if name not in before)]
        return ArrayRecord({name: arrays[name] for name in ordered})

    def _shown(self, arrays: ArrayRecord) -> ArrayRecord:
        if not self.clips or not any(_is_integer(array.dtype) for array in arrays.values()):
            return arrays
        return ArrayRecord({name: array for name, array in arrays.items() if not _is_integer(array.dtype)})


def only_record(message: Message) -> ArrayRecord | None:
    """The arrays of a message that has one record of them."""
    records = list(message.content.array_records.values()) if message.has_content() else []
    return records[0] if len(records) == 1 else None


def _is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint", "bool"))
