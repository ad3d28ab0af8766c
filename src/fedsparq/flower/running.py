"""What both strategies need to run: the way down, hooks into a loop that is not ours, and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result, Strategy

from fedsparq.errors import RunError
from fedsparq.flower.mod import portable
from fedsparq.flower.reports import RoundReport
from fedsparq.method import Method
from fedsparq.methods.registry import broadcast_method, check_broadcast

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


@contextmanager
def hooked(strategy: Strategy, configure: Any, aggregate: Any, offset: int) -> Iterator[None]:
    """While a strategy runs its own loop, its calls to its own methods come by us; rounds count from `offset`."""
    evaluate, judge = strategy.configure_evaluate, strategy.aggregate_evaluate
    own = {"configure_train": configure, "aggregate_train": aggregate}
    if offset:
        own["configure_evaluate"] = lambda number, *rest, **more: evaluate(number + offset, *rest, **more)
        own["aggregate_evaluate"] = lambda number, *rest, **more: judge(number + offset, *rest, **more)
    former = {name: vars(strategy)[name] for name in own if name in vars(strategy)}
    vars(strategy).update(own)
    try:
        yield
    finally:
        for name in own:
            del vars(strategy)[name]
        vars(strategy).update(former)


def way_down(choice: str | Method | None) -> Method | None:
    if choice is None:
        return None
    chosen = portable(choice, {}, broadcast_method)
    check_broadcast(chosen)
    return chosen


def check_ended(result: Any, rounds: int, played: Sequence[RoundReport], reason: str) -> None:
    """A run without a model is no success. A loop of somebody's own may give another result than Flower's."""
    answered = any(report.replies for report in played)
    sound = answered and len(result.arrays) > 0 if isinstance(result, Result) else answered or not played
    if rounds > 0 and not sound:
        raise RunError(f"the run ended without a model: {reason}")


def result_of(arrays: ArrayRecord) -> Result:
    result = Result()
    result.arrays = arrays
    return result


def shifted(result: Result, offset: int) -> Result:
    """Rounds of a run that went on are numbered from where it did."""
    if offset and isinstance(result, Result):
        for name, metrics in vars(result).items():
            if isinstance(metrics, dict):
                setattr(result, name, {number + offset: record for number, record in metrics.items()})
    return result
