"""A round under way in an aggregator: updates counted as they come, or held until the round closes.

Rules that need all updates hold them as bytes where these are available: a payload takes several times as much memory.
A rule reads each again as often as it needs it, and works with inner products: never are there n dense vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsparq.aggregate.buffers import BufferMean, robust_buffers
from fedsparq.errors import OptionError
from fedsparq.layout import Arrays, Buffers, Layout, Vector
from fedsparq.payload import Payload
from fedsparq.protocols import Aggregate, AggregatorTraits, Stateless, Update, Weighting

MAX_RETURNED_SHARE = 0.5
"""The largest share of a reply that returns to its client's residual; what a rule counts less is discarded. Otherwise
the residual of a client that is always clipped, or never chosen, would grow without bound."""

Float64s = NDArray[np.float64]


@dataclass(frozen=True)
class BufferedUpdate:
    """An update that is held until its round closes."""

    client: int
    norm: float
    buffers: Buffers | None
    payload: Callable[[], Payload]
    summary: Any = None
    """What the rule computed from it on arrival."""
    weight: float = 1.0

    @classmethod
    def of(cls, update: Update, summary: Any = None) -> BufferedUpdate:
        """Hold an update as bytes where these are available, and otherwise as it is."""
        payload = update.payload
        again = update.reread or (lambda: payload)
        return cls(update.client, payload.norm, payload.buffers, again, summary, update.weight)


Item = TypeVar("Item", BufferedUpdate, Update)
Rule = Callable[[Sequence[Update], Layout], tuple[Any, Mapping[int, float]]]
"""From all updates to their mean and, by client, the share of each reply that counted."""


class CountedRound:
    """Base of accumulators that add updates as they arrive: the shares, and the mean of buffers."""

    def __init__(self, layout: Layout, state: Arrays) -> None:
        self.layout, self.state = layout, state
        self.buffers, self.shares = BufferMean(), dict[int, float]()

    def count(self, update: Update, share: float = 1.0, weight: float = 1.0) -> None:
        """Note which share of an update counts; buffers count with this weight times the share."""
        self.shares[update.client] = share
        self.buffers.add(update.payload.buffers, weight * share)


class BufferedRound(Generic[Item]):
    """The accumulator of a rule that needs all updates, in the order of their clients. `hold` makes of an update what
    is held until then."""

    def __init__(
        self,
        decide: Callable[[Sequence[Item], Layout, Arrays], Aggregate],
        layout: Layout,
        state: Arrays,
        hold: Callable[[Update], Item],
    ) -> None:
        self._hold: Callable[[Update], Item] = hold
        self._held: list[Item] = []
        self._close: Callable[[Sequence[Item]], Aggregate] = lambda held: decide(held, layout, state)

    def add(self, update: Update) -> None:
        self._held.append(self._hold(update))

    def close(self) -> Aggregate:
        return self._close(sorted(self._held, key=lambda held: held.client))


@dataclass(frozen=True)
class WholeRound(Stateless):
    """See `whole_round`."""

    rule: Rule
    weighting: Weighting = "uniform"

    @property
    def traits(self) -> AggregatorTraits:
        return AggregatorTraits(weighting=self.weighting)

    def open(self, layout: Layout, state: Arrays) -> BufferedRound[Update]:
        return BufferedRound(self._aggregate, layout, state, lambda update: update)

    def _aggregate(self, updates: Sequence[Update], layout: Layout, state: Arrays) -> Aggregate:
        name = getattr(self.rule, "__name__", type(self.rule).__name__)
        given = self.rule(updates, layout)
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)):
            raise OptionError(f"aggregator {name!r} must return a pair: the mean, and a dict from clients to shares")
        mean = check_mean(name, given[0], layout.size)
        shares, buffers = check_shares(name, given[1], [update.client for update in updates]), BufferMean()
        for update in updates:
            buffers.add(update.payload.buffers, update.weight * shares[update.client])
        return Aggregate(mean, shares, buffers.mean(), state)


def whole_round(rule: Rule, weighting: Weighting = "uniform") -> WholeRound:
    """Build an aggregator from a function of all updates: ``rule(updates, layout) -> (mean, shares)``.

    Shares go from 0 (did not count) to 1, one for each client; the rest of a reply goes back to its client's residual.
    Statistics such as BatchNorm's are averaged by weight times share.

    >>> import fedsparq as fq, numpy as np
    >>> def shortest(updates, layout):
    ...     least = min(updates, key=lambda u: u.payload.norm)
    ...     return least.payload.dense(), {u.client: float(u is least) for u in updates}
    >>> method = fq.method("fedsparq").with_server(aggregator=fq.whole_round(shortest))
    """
    return WholeRound(rule, weighting)


def weighted_sum(held: Sequence[BufferedUpdate], weights: Float64s, layout: Layout) -> Vector:
    """Return the sum of weight times update."""
    total = np.zeros(layout.size, np.float32)
    for each, weight in zip(held, weights, strict=True):
        if weight:
            each.payload().add_to(total, float(weight))
    return total


def dots(held: Sequence[BufferedUpdate], vector: Vector) -> Float64s:
    """Return the inner product of each update with a vector."""
    return np.array([each.payload().dot(vector) for each in held])


def aggregate(
    held: Sequence[BufferedUpdate],
    mean: Vector,
    weights: Float64s,
    state: Arrays | None = None,
    *,
    counted: Float64s | None = None,
    plain: bool = False,
) -> Aggregate:
    """Return the result of a rule, given the weight of each update in the mean, and which share of it `counted`: if not
    given, a weight of 1 / n is all of it. With `plain`, statistics are averaged without bounds.
    """
    shares, let_go = split_shares([each.client for each in held], weights * len(held) if counted is None else counted)
    buffers = robust_buffers([each.buffers for each in held], weights, plain)
    return Aggregate(mean, shares, buffers, state or {}, let_go)


def split_shares(clients: Sequence[int], counted: Float64s) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """Return the share of each reply that counted, and the share that is discarded."""
    shares = {client: float(min(1.0, max(0.0, share))) for client, share in zip(clients, counted, strict=True)}
    let_go = {
        client: 1 - MAX_RETURNED_SHARE - share for client, share in shares.items() if share < 1 - MAX_RETURNED_SHARE
    }
    return shares, let_go


def check_mean(name: str, mean: Any, size: int) -> Vector:
    """Return the mean as float32; OptionError, which names the aggregator, unless it is finite and of this size."""
    with np.errstate(all="ignore"):
        vector: Vector = np.asarray(mean, np.float32)
        sound = vector.shape == (size,) and np.isfinite(vector @ vector)
    if not sound:
        raise OptionError(f"aggregator {name!r} must give a finite mean of {size} values")
    return vector


def check_shares(name: str, shares: Mapping[int, float], clients: Collection[int]) -> dict[int, float]:
    """Return the shares as floats; OptionError, which names the aggregator, unless each client has one."""
    if set(shares) != set(clients) or not all(0 <= share <= 1 for share in shares.values()):
        raise OptionError(f"aggregator {name!r} must give each client of the round a share from 0 to 1: {shares}")
    return {client: float(share) for client, share in shares.items()}
