"""A mean with noise in it: what it says of any one client is bounded, however much anybody knows of the others.

Each reply has at most the norm `clip`, all count alike, and the sum is divided by a constant, so a client moves it by
at most `clip`. Noise of `noise` times that is added to every coordinate of a public support, also where nobody sent
anything. It comes from the system's random source and is drawn once, when the round closes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import field, replace

import numpy as np
from numpy.typing import NDArray

from fedsparq.aggregate.support import LevelSum, Support
from fedsparq.errors import OptionError, SecureSumError
from fedsparq.layout import Arrays, Layout
from fedsparq.options import Count, NonNegative, Positive, component
from fedsparq.payload.support import RoundPlan
from fedsparq.privacy.noise import Noise, system_noise
from fedsparq.protocols import Aggregate, AggregatorTraits, Update

TOP = 15
"""The largest level of a private update: four times what a coordinate of the clip's length has on average."""
_TOLERANCE = 1 + 1e-6
_PARTICIPATIONS = "participations"
"""The key of how often each client counted."""


@component
class PrivateMean:
    """The sum of replies of norm at most `clip`, with Gaussian noise, over the constant `divisor`."""

    clip: Positive
    noise: NonNegative
    """Its standard deviation on each coordinate, as a multiple of the clip."""
    divisor: Positive
    """How many clients a round is planned for; not how many came."""
    clients: Count
    rounds: Count
    """A client counts in no more rounds than this."""
    support: Support | None = None
    """The coordinates of a round; None: all of them."""
    variance: NonNegative = 0.0
    """Of the whole-number noise that each client adds to its levels, where the server adds none."""
    draw: Noise = field(default=system_noise, repr=False)
    """For tests alone: noise that can be drawn again is no noise."""

    @property
    def traits(self) -> AggregatorTraits:
        """A round without replies has its noise too: a model that stood still would tell who did not take part."""
        return AggregatorTraits(steps_without_replies=not self.variance, plans_rounds=True)

    def init(self, layout: Layout) -> Arrays:
        own = {_PARTICIPATIONS: np.zeros(self.clients, np.int64)}
        return own | (self.support.init(layout) if self.support else {})

    def plan(self, layout: Layout, state: Arrays) -> RoundPlan:
        if self.support is None:
            return RoundPlan(clip=self.clip)
        plan = self.support.plan(layout, state)
        return replace(plan, step=self.step(layout), top=TOP, clip=self.clip, variance=self.variance)

    def step(self, layout: Layout) -> float:
        """Of the lattice: a quarter of what each coordinate has on average in an update as long as the clip."""
        if self.support is None:
            raise OptionError("updates of all coordinates have no lattice")
        return self.clip / (4 * math.sqrt(self.support.count(layout)))

    def open(self, layout: Layout, state: Arrays) -> _PrivateSum:
        return _PrivateSum(self, layout, state)


class _PrivateSum:
    def __init__(self, private: PrivateMean, layout: Layout, state: Arrays) -> None:
        self._private, self._layout, self._state = private, layout, state
        self._total = np.zeros(layout.size)
        """In float64: rounding to float32 while adding would let one client move the sum by more than the clip."""
        self._sum = LevelSum(private.plan(layout, state), layout.size) if private.support else None
        self._shares: dict[int, float] = {}

    def add(self, update: Update) -> None:
        used = self._state[_PARTICIPATIONS][update.client]
        counts = update.payload.norm <= self._private.clip * _TOLERANCE and used < self._private.rounds
        if counts and self._sum is not None:
            counts = self._sum.add(update)
        elif counts:
            self._total += update.payload.dense()
        self._shares[update.client] = float(counts)

    def add_sum(self, levels: NDArray[np.int64], clients: Sequence[int]) -> None:
        """Levels of which each client has made sure that they are below the clip."""
        if self._sum is None:
            raise OptionError("updates of all coordinates have no lattice")
        if max(self._state[_PARTICIPATIONS][list(clients)]) >= self._private.rounds:
            raise SecureSumError("a sum with a client that had counted in as many rounds as it may")
        self._sum.levels += levels
        self._shares |= dict.fromkeys(clients, 1.0)

    def close(self) -> Aggregate:
        private, counted = self._private, [client for client, share in self._shares.items() if share]
        state = dict(self._state)
        state[_PARTICIPATIONS] = state[_PARTICIPATIONS].copy()
        state[_PARTICIPATIONS][counted] += 1
        support = self._sum.indices if self._sum else slice(None)
        total = self._sum.values if self._sum else self._total
        if not private.variance:  # else the clients have put theirs in
            total = total + private.noise * private.clip * private.draw(total.size)
        mean = np.zeros(self._layout.size, np.float32)
        mean[support] = total / private.divisor
        if private.support is not None and self._sum is not None:
            state |= private.support.learn(self._state, self._sum.indices, mean[support])
        return Aggregate(mean, self._shares, None, state)


def most_participations(state: Arrays, asked: Collection[int] = ()) -> int:
    """In how many rounds that client counted which counted most often; if these were asked and counted once more."""
    counted = state[_PARTICIPATIONS].copy()
    counted[list(asked)] += 1
    return int(counted.max(initial=0))
