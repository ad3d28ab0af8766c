"""A round's updates that wait for the round to close, and what rules that weigh them share.

Updates are held as bytes where these are at hand: a payload takes several times as much memory. A rule reads each again
as often as it needs it, and works with inner products: never are there n dense vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.aggregate.robust_buffers import robust_buffers
from fedsparq.layout import Arrays, Buffers, Layout, Vector
from fedsparq.payload import Payload
from fedsparq.protocols import Aggregate, Update

MOST_PUT_BACK = 0.5
"""At most this share of a reply goes back to its client; what a rule counts less than the rest is let go. A client that
is always clipped, or never chosen, would otherwise owe more each round, without end."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Held:
    """An update of a round under way."""

    client: int
    norm: float
    buffers: Buffers | None
    payload: Callable[[], Payload]
    seen: Any = None
    """What the rule took of it when it came."""
    weight: float = 1.0


Decide = Callable[[Sequence[Held], Layout, Arrays], Aggregate]
"""A rule: from all updates of a round, in the order of their clients, and its own state."""


class WaitingRound:
    """The accumulator of a rule that needs the whole round. `look` takes what it needs of an update as it comes."""

    def __init__(
        self, decide: Decide, layout: Layout, state: Arrays, look: Callable[[Payload], Any] = lambda payload: None
    ) -> None:
        self._decide, self._layout, self._state, self._look = decide, layout, state, look
        self._held: list[Held] = []

    def add(self, update: Update) -> None:
        payload = update.payload
        again, seen = update.reread or (lambda: payload), self._look(payload)
        self._held.append(Held(update.client, payload.norm, payload.buffers, again, seen, update.weight))

    def close(self) -> Aggregate:
        return self._decide(sorted(self._held, key=lambda held: held.client), self._layout, self._state)


def weighted_sum(held: Sequence[Held], weights: Numbers, layout: Layout) -> Vector:
    """The sum of weight times update."""
    total = np.zeros(layout.size, np.float32)
    for each, weight in zip(held, weights, strict=True):
        if weight:
            each.payload().add_to(total, float(weight))
    return total


def dots(held: Sequence[Held], vector: Vector) -> Numbers:
    """The inner product of each update with a vector."""
    return np.array([each.payload().dot(vector) for each in held])


def aggregate(
    held: Sequence[Held],
    mean: Vector,
    weights: Numbers,
    state: Arrays | None = None,
    *,
    counted: Numbers | None = None,
    plain: bool = False,
) -> Aggregate:
    """What a rule found, given the weight of each update in the mean, and which share of it `counted`: if not given, a
    weight of 1 / n is all of it.

    `plain` says that the rule bounds nothing: then statistics are averaged without bounds too.
    """
    shares, let_go = shares_of([each.client for each in held], weights * len(held) if counted is None else counted)
    buffers = robust_buffers([each.buffers for each in held], weights, plain)
    return Aggregate(mean, shares, buffers, state or {}, let_go)


def shares_of(clients: Sequence[int], counted: Numbers) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """The share of each reply that counted, and what is let go of it."""
    shares = {client: float(min(1.0, max(0.0, share))) for client, share in zip(clients, counted, strict=True)}
    let_go = {client: 1 - MOST_PUT_BACK - share for client, share in shares.items() if share < 1 - MOST_PUT_BACK}
    return shares, let_go
