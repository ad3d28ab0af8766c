"""Integers on their way through strategies that know only floats."""

from __future__ import annotations

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from fedsparq.federate.exact import ArraySpec, same
from fedsparq.flower.advice import PRIVATE
from fedsparq.flower.records import cast


class Integers:
    """The integer arrays of a model in a round.

    Clipping multiplies updates, which integers cannot bear: strategies that clip are not shown them, and the server's
    stay; the largest of the nodes' would be one node's in clear. Other strategies average integers as floats, which
    have no room for large ones: those that no node changed stay exact.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._withholds = isinstance(strategy, PRIVATE)
        self._model, self._changed = ArrayRecord(), set[str]()

    def begin(self, model: ArrayRecord) -> ArrayRecord:
        """Start a round; the model as the strategy is shown it."""
        self._model, self._changed = model, set()
        return self._shown(model)

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
        return self._shown(arrays)

    def whole(self, aggregated: ArrayRecord) -> ArrayRecord:
        """The next model in its own types and order."""
        arrays, before = cast(aggregated, ArraySpec.of(self._model)), self._model
        for name, array in before.items():
            if _is_integer(array.dtype) and (self._withholds or (name in arrays and name not in self._changed)):
                arrays[name] = array
        ordered = [*(name for name in before if name in arrays), *(name for name in arrays if name not in before)]
        return ArrayRecord({name: arrays[name] for name in ordered})

    def _shown(self, arrays: ArrayRecord) -> ArrayRecord:
        if not self._withholds or not any(_is_integer(array.dtype) for array in arrays.values()):
            return arrays
        return ArrayRecord({name: array for name, array in arrays.items() if not _is_integer(array.dtype)})


def _is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint", "bool"))
