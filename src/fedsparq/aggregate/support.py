"""Which coordinates the clients of a round send, on which lattice: chosen from what past rounds made public."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsparq.aggregate.rounds import CountedRound
from fedsparq.errors import OptionError, WireError
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Decay, Fraction, Positive, component
from fedsparq.payload import Indices
from fedsparq.payload.support import RoundPlan, SupportPlan, levels_on
from fedsparq.protocols import Aggregate, AggregatorTraits, Update

_AIM = 0.7
"""The root mean square of the mean level that the step is steered to."""
_FASTEST = 4.0
"""The step changes by no more than this factor from one round to the next."""


@component
class Support:
    """`fraction` of all coordinates: up to a share `small` whole layers, the smallest first; of the others a `known`
    share where past means were largest, the rest at random, so that every coordinate comes round."""

    fraction: Fraction = 0.1
    known: Decay = 0.5
    small: Decay = 0.0
    decay: Decay = 0.9
    """How much of the past the record of means keeps."""
    first_step: Positive = 0.005

    def init(self, layout: Layout) -> Arrays:
        return {
            "step": np.array([self.first_step]),
            "record": np.zeros(layout.size, np.float32),
            "rounds": np.zeros(1, np.int64),
        }

    def count(self, layout: Layout) -> int:
        """Return how many coordinates a round is about."""
        return min(layout.size, max(1, round(self.fraction * layout.size)))

    def plan(self, layout: Layout, state: Arrays) -> RoundPlan:
        """Return the plan of the next round."""
        count = self.count(layout)
        small = self._small_layers(layout, count)
        record = state["record"].copy()
        record[small] = 0
        listed = np.union1d(small, _largest(record, round(self.known * (count - small.size))))
        seed = int(np.random.default_rng([int(state["rounds"][0]), 8]).integers(2**63))
        support = SupportPlan.of_indices(layout.size, count - listed.size, seed, listed)
        return RoundPlan(support, float(state["step"][0]))

    def _small_layers(self, layout: Layout, count: int) -> Indices:
        """Return the coordinates of the smallest layers that together fit into their share."""
        left, spans = self.small * count, []
        for tensor in sorted(layout.parameters, key=lambda tensor: tensor.size):
            left -= tensor.size
            if left < 0:
                break
            spans.append(np.arange(tensor.span.start, tensor.span.stop, dtype=np.uint32))
        return np.sort(np.concatenate(spans)) if spans else np.empty(0, np.uint32)

    def learn(self, state: Arrays, support: Indices, mean: Vector) -> Arrays:
        """Return the state after a round with this mean on this support. The mean is public: no privacy is lost."""
        level = float(np.sqrt(np.mean((mean / state["step"][0]) ** 2, dtype=np.float64)))
        record = state["record"].copy()
        record[support] = self.decay * record[support] + (1 - self.decay) * np.abs(mean)
        step = state["step"] * np.clip(level / _AIM, 1 / _FASTEST, _FASTEST)
        return {"step": step, "record": record, "rounds": state["rounds"] + 1}


def _largest(record: Vector, count: int) -> Indices:
    """Return where the record is largest; nowhere before anything is known."""
    count = min(count, int(np.count_nonzero(record)))
    if not count:
        return np.empty(0, np.uint32)
    return np.sort(np.argpartition(-record, count - 1)[:count]).astype(np.uint32)


@component
class CommonMean:
    """The mean of levels on a common support, all clients alike."""

    support: Support = Support()
    traits: ClassVar[AggregatorTraits] = AggregatorTraits(plans_rounds=True)

    def init(self, layout: Layout) -> Arrays:
        return self.support.init(layout)

    def plan(self, layout: Layout, state: Arrays) -> RoundPlan:
        return self.support.plan(layout, state)

    def open(self, layout: Layout, state: Arrays) -> _CommonMean:
        return _CommonMean(self.support, layout, state)


class LevelSum:
    """The exact sum of levels on a round's support, as they come or summed up already."""

    def __init__(self, plan: RoundPlan, size: int) -> None:
        if plan.support is None:
            raise OptionError("updates of all coordinates have no lattice")
        self.indices, self.step = plan.support.indices(size), np.float32(plan.step)
        self.levels = np.zeros(self.indices.size, np.int64)

    def add(self, update: Update) -> bool:
        """Add an update if it is on the round's lattice, and return whether it is."""
        try:
            self.levels += levels_on(self.indices, self.step, update.payload)
        except WireError:
            return False
        return True

    @property
    def values(self) -> NDArray[np.float64]:
        return np.multiply(self.levels, float(self.step), dtype=np.float64)


class _CommonMean(CountedRound):
    def __init__(self, support: Support, layout: Layout, state: Arrays) -> None:
        super().__init__(layout, state)
        self._support, self._sum = support, LevelSum(support.plan(layout, state), layout.size)

    def add(self, update: Update) -> None:
        self.count(update, float(self._sum.add(update)))

    def add_sum(self, levels: NDArray[np.int64], clients: Sequence[int]) -> None:
        self._sum.levels += levels
        self.shares |= dict.fromkeys(clients, 1.0)

    def close(self) -> Aggregate:
        counted = sum(self.shares.values())
        if not counted:
            return Aggregate(None, self.shares, state=self.state)
        mean = np.zeros(self.layout.size, np.float32)
        mean[self._sum.indices] = self._sum.values / counted
        state = self._support.learn(self.state, self._sum.indices, mean[self._sum.indices])
        return Aggregate(mean, self.shares, self.buffers.mean(), state)
