"""SOBAA, the channel and the server: the signs of all clients add up over the air. A simulation, and our reading.

Nothing here is measured in bytes: a round takes so many uses of the channel, however many clients there are.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Literal

import numpy as np

from fedsparq.aggregate.common import BufferMean
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import NonNegative, Positive, component
from fedsparq.payload import Payload, Seeded
from fedsparq.protocols import Aggregate, AggregatorTraits, Update


@component
class OverTheAir:
    """y = sqrt(power) sum of signs + n, n ~ CN(0, noise). A client with |h|^2 < silent, h ~ CN(0, 1), is not heard; the
    others invert their channels.

    The mean update is the clients' mean magnitude times Re(y) / (sqrt(power) heard), or times its sign (`majority`).
    """

    power: Positive = 1.0
    noise: NonNegative = 0.1
    silent: NonNegative = 0.1
    estimate: Literal["mean", "majority"] = "mean"
    seed: int = 0
    traits: ClassVar[AggregatorTraits] = AggregatorTraits(
        requires="signs on a common support", provides="a channel that adds up signs"
    )

    def init(self, layout: Layout) -> Arrays:
        return {"round": np.zeros(1, np.int64)}

    def open(self, layout: Layout, state: Arrays) -> _Round:
        return _Round(self, layout, state)

    def is_heard(self, number: int, client: int) -> bool:
        """Whether a client's channel is good enough in a round."""
        gain = np.random.default_rng([self.seed, number, client, 8]).exponential()
        return bool(gain >= self.silent)

    def received(self, signs: Vector, number: int) -> Vector:
        """The real part of what arrives, over sqrt(power): the sum of signs, and noise."""
        spread = np.sqrt(self.noise / 2 / self.power)
        noise = np.random.default_rng([self.seed, number, 9]).normal(scale=spread, size=signs.size)
        return (signs + noise).astype(np.float32)


class _Round:
    def __init__(self, own: OverTheAir, layout: Layout, state: Arrays) -> None:
        self._own, self._layout, self._number = own, layout, int(state["round"][0]) + 1
        self._updates = list[Update]()

    def add(self, update: Update) -> None:
        self._updates.append(update)

    def close(self) -> Aggregate:
        own, number = self._own, self._number
        common = Counter(u.payload.selection for u in self._updates if isinstance(u.payload.selection, Seeded))
        support = max(common, key=lambda each: (common[each], each.seed)) if common else Seeded(0, 0, 0)
        sending = [u for u in self._updates if u.payload.selection == support]
        heard = [u for u in sending if own.is_heard(number, u.client)]
        mean, buffers = np.zeros(self._layout.size, np.float32), BufferMean()
        if heard:
            replies = [_values(u.payload) for u in heard]
            magnitude = np.mean([np.abs(reply).mean() if reply.size else 0.0 for reply in replies])
            total = own.received(np.sum([np.sign(reply) for reply in replies], axis=0), number)
            estimate = np.sign(total) if own.estimate == "majority" else total / len(heard)
            mean[support.indices] = magnitude * estimate
        for update in heard:
            buffers.add(update.payload.buffers, 1.0)
        counted = {update.client for update in heard}
        shares = {update.client: float(update.client in counted) for update in self._updates}
        measures = {"channel_uses": float(support.count + 1), "heard": float(len(heard))}
        return Aggregate(mean, shares, buffers.mean(), {"round": np.array([number])}, measures=measures)


def _values(payload: Payload) -> Vector:
    return np.concatenate([values.decode() for values in payload.values])
