"""Aggregators that need all updates of a round at once, from a plain function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsparq.aggregate.common import BufferMean, check_mean, check_shares
from fedsparq.errors import OptionError
from fedsparq.layout import Arrays, Layout
from fedsparq.protocols import Aggregate, AggregatorTraits, Update, Weighting

Rule = Callable[[Sequence[Update], Layout], tuple[Any, Mapping[int, float]]]
"""From all updates to their mean and, by client, the share of each reply that counted."""


@dataclass(frozen=True)
class WholeRound:
    """See `whole_round`."""

    rule: Rule
    weighting: Weighting = "uniform"

    @property
    def traits(self) -> AggregatorTraits:
        return AggregatorTraits(weighting=self.weighting)

    def init(self, layout: Layout) -> Arrays:
        return {}

    def open(self, layout: Layout, state: Arrays) -> _Collected:
        return _Collected(self.rule, layout, state)


def whole_round(rule: Rule, weighting: Weighting = "uniform") -> WholeRound:
    """An aggregator from a function of all updates: ``rule(updates, layout) -> (mean, shares)``.

    Shares go from 0 (did not count) to 1, one for each client; the rest of a reply goes back to its client's residual.
    Statistics such as BatchNorm's are averaged by weight times share.

    >>> import fedsparq as fq, numpy as np
    >>> def shortest(updates, layout):
    ...     least = min(updates, key=lambda u: u.payload.norm)
    ...     return least.payload.dense(), {u.client: float(u is least) for u in updates}
    >>> method = fq.method("fedsparq").with_server(aggregator=fq.whole_round(shortest))
    """
    return WholeRound(rule, weighting)


class _Collected:
    def __init__(self, rule: Rule, layout: Layout, state: Arrays) -> None:
        self._rule, self._layout, self._state = rule, layout, state
        self._updates: list[Update] = []

    def add(self, update: Update) -> None:
        self._updates.append(update)

    def close(self) -> Aggregate:
        name = getattr(self._rule, "__name__", type(self._rule).__name__)
        updates = sorted(self._updates, key=lambda update: update.client)
        given = self._rule(updates, self._layout)
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)):
            raise OptionError(f"aggregator {name!r} must return a pair: the mean, and a dict from clients to shares")
        mean = check_mean(name, given[0], self._layout.size)
        shares = check_shares(name, given[1], [update.client for update in updates])
        buffers = BufferMean()
        for update in updates:
            if shares[update.client]:
                buffers.add(update.payload.buffers, update.weight * shares[update.client])
        return Aggregate(mean, shares, buffers.mean(), self._state)
