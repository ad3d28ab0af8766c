"""An aggregator that counts a share of each reply, chosen by the test, and remembers arrays of every kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsparq.layout import Arrays, Layout
from fedsparq.protocols import Aggregate, Update


@dataclass(frozen=True)
class Sharing:
    """The sum of share times update."""

    share: Callable[[int, int], float]
    """Of a client, given how many rounds this aggregator has closed."""

    def init(self, layout: Layout) -> Arrays:
        return {
            "rounds": np.zeros((), np.int64),
            "last": np.zeros((2, layout.size), np.float16).T,
            "seen": np.zeros(3, bool),
            "none": np.empty((0, 4), np.uint8),
        }

    def open(self, layout: Layout, state: Arrays) -> _Sharing:
        return _Sharing(self, layout, state)


class _Sharing:
    def __init__(self, own: Sharing, layout: Layout, state: Arrays) -> None:
        self._own, self._state, self._total = own, state, np.zeros(layout.size, np.float32)
        self._shares: dict[int, float] = {}

    def add(self, update: Update) -> None:
        share = self._own.share(update.client, int(self._state["rounds"]))
        update.payload.add_to(self._total, share)
        self._shares[update.client] = share

    def close(self) -> Aggregate:
        seen = self._state["seen"].copy()
        seen[[client % 100 for client in self._shares]] = True  # nodes of Flower's begin with 100
        last = np.stack([self._total, self._state["last"][:, 0]]).astype(np.float16).T
        state = {"rounds": self._state["rounds"] + 1, "last": last, "seen": seen, "none": self._state["none"]}
        return Aggregate(self._total, self._shares, None, state)
