"""SOBAA: signs at indices that all clients of a round draw alike, so that a channel adds them up. Our reading.

A simulation: nothing here is measured in bytes. A round takes a number of uses of the channel, however many clients
there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np

from fedsparq.aggregate.buffers import BufferMean
from fedsparq.aggregate.rounds import BufferedRound
from fedsparq.compress.sparsify import kept_count
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.method import Method
from fedsparq.methods.registry import register
from fedsparq.options import Fraction, NonNegative, Positive, component
from fedsparq.payload import Codebook, Payload, Seeded
from fedsparq.payload.kernels import random_bits
from fedsparq.protocols import Aggregate, AggregatorTraits, Compressed, CompressorTraits, Update


@component
class CommonSigns:
    """The signs of a fraction of the coordinates, which follow from the round's number; and their mean magnitude."""

    fraction: Fraction = 0.2
    traits: ClassVar[CompressorTraits] = CompressorTraits(
        draws_per_round=True,
        copies_values=True,
        value_kinds=(Codebook,),
        provides="signs on a common support",
        requires="a channel that adds up signs",
    )

    def init(self, layout: Layout) -> Arrays:
        return {"round": np.zeros(1, np.int64)}

    def begin(self, state: Arrays, round: int) -> Arrays:
        return {"round": np.array([round - 1])}

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        number = int(state["round"][0]) + 1
        drawn = Seeded(layout.size, kept_count(self.fraction, layout.size), int(random_bits(np.uint64(number), 0)))
        chosen = update[drawn.indices]
        magnitude = np.abs(chosen).mean(dtype=np.float64) if chosen.size else 0.0
        signs = np.where(np.signbit(chosen), np.int16(-1), np.int16(1))
        table, values = np.array([magnitude], np.float32), list[Codebook]()
        for start, end in pairwise(np.searchsorted(drawn.indices, layout.bounds)):
            values.append(Codebook(table if end > start else table[:0], signs[start:end]))
        return Compressed(Payload(layout, drawn, tuple(values)), {"round": np.array([number])})


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

    def open(self, layout: Layout, state: Arrays) -> BufferedRound[Update]:
        return BufferedRound(self._aggregate, layout, state, lambda update: update)

    def is_heard(self, number: int, client: int) -> bool:
        """Return whether a client's channel is good enough in a round."""
        gain = np.random.default_rng([self.seed, number, client, 8]).exponential()
        return bool(gain >= self.silent)

    def received(self, signs: Vector, number: int) -> Vector:
        """Return the real part of the received signal over sqrt(power): the sum of signs, and noise."""
        spread = np.sqrt(self.noise / 2 / self.power)
        noise = np.random.default_rng([self.seed, number, 9]).normal(scale=spread, size=signs.size)
        return (signs + noise).astype(np.float32)

    def _aggregate(self, updates: Sequence[Update], layout: Layout, state: Arrays) -> Aggregate:
        number = int(state["round"][0]) + 1
        common = Counter(u.payload.selection for u in updates if isinstance(u.payload.selection, Seeded))
        support = max(common, key=lambda each: (common[each], each.seed)) if common else Seeded(0, 0, 0)
        sending = [u for u in updates if u.payload.selection == support]
        heard = [u for u in sending if self.is_heard(number, u.client)]
        mean, buffers = np.zeros(layout.size, np.float32), BufferMean()
        if heard:
            replies = [_values(u.payload) for u in heard]
            magnitude = np.mean([np.abs(reply).mean() if reply.size else 0.0 for reply in replies])
            total = self.received(np.sum([np.sign(reply) for reply in replies], axis=0), number)
            estimate = np.sign(total) if self.estimate == "majority" else total / len(heard)
            mean[support.indices] = magnitude * estimate
        for update in heard:
            buffers.add(update.payload.buffers, 1.0)
        counted = {update.client for update in heard}
        shares = {update.client: float(update.client in counted) for update in updates}
        measures = {"channel_uses": float(support.count + 1), "heard": float(len(heard))}
        return Aggregate(mean, shares, buffers.mean(), {"round": np.array([number])}, measures=measures)


def _values(payload: Payload) -> Vector:
    return np.concatenate([values.decode() for values in payload.values])


@register("sobaa", version=1)
def sobaa(
    fraction: Fraction = 0.2,
    power: Positive = 1.0,
    noise: NonNegative = 0.1,
    silent: NonNegative = 0.1,
    estimate: Literal["mean", "majority"] = "mean",
) -> Method:
    """Signs on a common support that add up over the air, with error feedback: a simulation, its unit is channel uses.

    Args:
        fraction: of the coordinates whose signs are sent.
        power: of a client's signal.
        noise: power of the receiver's.
        silent: a client whose channel's gain is below this is not heard in a round.
        estimate: of the signs, their `mean` or the sign of their sum (`majority`).
    """
    return Method(CommonSigns(fraction), feedback="full", aggregator=OverTheAir(power, noise, silent, estimate))
