"""The mean of what clients would send, where they send only how it differs from a shift that both sides remember."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedsparq.aggregate.common import BufferMean
from fedsparq.layout import Arrays, Layout
from fedsparq.options import NonNegative, component
from fedsparq.protocols import Aggregate, AggregatorTraits, Update


@component
class ShiftedMean:
    """S + the mean reply, where S is the mean of the clients' shifts, each of which moves by `gain` times its replies.

    Only clients that were heard so far have a shift. `over`: what the mean reply is taken of. Of the `round` suits
    unbiased replies; of all `clients`, those that were not asked counting as 0, is S as it will be with a gain of 1.
    """

    gain: NonNegative = 1.0
    over: Literal["clients", "round"] = "clients"

    @property
    def traits(self) -> AggregatorTraits:
        provides = f"a server that moves shifts by {self.gain:g}"
        return AggregatorTraits(requires="replies relative to a shift", provides=provides)

    def init(self, layout: Layout) -> Arrays:
        return {"total": np.zeros(layout.size, np.float32), "clients": np.empty(0, np.uint64)}

    def open(self, layout: Layout, state: Arrays) -> _Round:
        return _Round(self, layout, state)


class _Round:
    def __init__(self, own: ShiftedMean, layout: Layout, state: Arrays) -> None:
        self._own, self._state, self._sum = own, state, np.zeros(layout.size, np.float32)
        self._buffers = BufferMean()
        self._shares: dict[int, float] = {}

    def add(self, update: Update) -> None:
        update.payload.add_to(self._sum, 1.0)
        self._buffers.add(update.payload.buffers, 1.0)
        self._shares[update.client] = 1.0

    def close(self) -> Aggregate:
        total = self._state["total"]
        heard = np.union1d(self._state["clients"], np.array(list(self._shares), np.uint64))
        count = heard.size if self._own.over == "clients" else len(self._shares)
        mean = total / np.float32(heard.size) + self._sum / np.float32(count)
        state = {"total": total + np.float32(self._own.gain) * self._sum, "clients": heard}
        return Aggregate(mean, self._shares, self._buffers.mean(), state)
