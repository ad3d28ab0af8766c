"""Aggregators from a function of all updates."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from made_round import CLIENTS, LAYOUT, buffers_of, dense, made_round, statistics

from fedsparq import whole_round
from fedsparq.errors import OptionError
from fedsparq.layout import Layout
from fedsparq.protocols import Aggregate, Update


def close(rule: Any, updates: list[Update], **options: Any) -> Aggregate:
    aggregator = whole_round(rule, **options)
    accumulator = aggregator.open(LAYOUT, aggregator.init(LAYOUT))
    for update in updates:
        accumulator.add(update)
    return accumulator.close()


def below_median(updates: Sequence[Update], layout: Layout) -> tuple[Any, dict[int, float]]:
    """The one of the issue's example."""
    norms = {u.client: float(np.linalg.norm(u.payload.dense())) for u in updates}
    kept = {client for client, norm in norms.items() if norm <= np.median(list(norms.values()))}
    mean = sum(u.payload.dense() for u in updates if u.client in kept) / len(kept)
    return mean, {u.client: float(u.client in kept) for u in updates}


def trimmed(updates: Sequence[Update], layout: Layout) -> tuple[Any, dict[int, float]]:
    """A coordinate-wise trimmed mean, of which each client's share is how many of its coordinates stayed."""
    stacked = np.stack([u.payload.dense() for u in updates])
    order = stacked.argsort(axis=0).argsort(axis=0)
    stays = (order > 0) & (order < len(updates) - 1)
    shares = {u.client: stays[row].mean() for row, u in enumerate(updates)}
    return np.where(stays, stacked, 0).sum(axis=0) / stays.sum(axis=0), shares


def test_shares_are_those_of_the_rule() -> None:
    updates = made_round()
    found = close(below_median, updates)
    norms = np.linalg.norm(dense(updates), axis=1)
    kept = norms <= np.median(norms)
    assert found.shares == {client: float(counts) for client, counts in zip(CLIENTS, kept, strict=True)}
    np.testing.assert_allclose(found.mean, dense(updates)[kept].mean(axis=0), atol=1e-6)  # type: ignore[arg-type]
    assert found.buffers is not None
    np.testing.assert_allclose(found.buffers.statistics, statistics(updates)[kept].mean(axis=0), atol=1e-6)
    counted = [buffers_of(update).counters[0] for update, counts in zip(updates, kept, strict=True) if counts]
    assert found.buffers.counters.tolist() == [max(counted)], "what did not count does not move the counters"


def test_buffers_go_by_weight_times_share() -> None:
    updates = made_round("examples")
    found = close(trimmed, updates, weighting="examples")
    weights = [update.examples * found.shares[update.client] for update in updates]
    assert found.buffers is not None
    expected = np.average(statistics(updates), axis=0, weights=weights)
    np.testing.assert_allclose(found.buffers.statistics, expected, atol=1e-6)
    assert all(type(share) is float and 0 < share < 1 for share in found.shares.values())
    middle = np.sort(dense(updates), axis=0)[1:-1].mean(axis=0)
    np.testing.assert_allclose(found.mean, middle, atol=1e-6)  # type: ignore[arg-type]


def test_updates_come_in_the_order_of_clients() -> None:
    """However they arrived: the result must not depend on who was faster."""
    seen = []

    def watching(updates: Sequence[Update], layout: Layout) -> tuple[Any, dict[int, float]]:
        seen.append([u.client for u in updates])
        assert layout is LAYOUT
        return np.zeros(layout.size), {u.client: 1.0 for u in updates}

    for updates in (made_round(), made_round()[::-1]):
        close(watching, updates)
    assert seen == [sorted(CLIENTS)] * 2


def test_weighting_is_asked_for() -> None:
    assert whole_round(below_median).weighting == "uniform"
    assert whole_round(below_median, "examples").weighting == "examples"


def test_float64_means_become_float32() -> None:
    found = close(lambda updates, layout: ([0.1] * layout.size, dict.fromkeys(CLIENTS, True)), made_round())
    assert found.mean is not None
    assert found.mean.dtype == np.float32
    assert found.shares == dict.fromkeys(CLIENTS, 1.0)


def test_nothing_may_count() -> None:
    found = close(lambda updates, layout: (np.zeros(layout.size), dict.fromkeys(CLIENTS, 0.0)), made_round())
    assert found.buffers is None
    assert set(found.shares.values()) == {0.0}


ALL = dict.fromkeys(CLIENTS, 1.0)
WRONG: dict[str, tuple[Any, str]] = {
    "one client missing": ((np.zeros(LAYOUT.size), dict.fromkeys(CLIENTS[1:], 1.0)), "each client"),
    "a stranger": ((np.zeros(LAYOUT.size), {**ALL, 99: 1.0}), "each client"),
    "more than all": ((np.zeros(LAYOUT.size), {**ALL, 4: 1.01}), "a share from 0 to 1"),
    "less than nothing": ((np.zeros(LAYOUT.size), {**ALL, 4: -0.01}), "a share from 0 to 1"),
    "not a number": ((np.zeros(LAYOUT.size), {**ALL, 4: np.nan}), "a share from 0 to 1"),
    "too short": ((np.zeros(LAYOUT.size - 1), ALL), f"a finite mean of {LAYOUT.size} values"),
    "a matrix": ((np.zeros((LAYOUT.size, 1)), ALL), f"a finite mean of {LAYOUT.size} values"),
    "nan": ((np.full(LAYOUT.size, np.nan), ALL), "a finite mean"),
    "infinite": ((np.full(LAYOUT.size, np.inf), ALL), "a finite mean"),
    "beyond float32": ((np.full(LAYOUT.size, 1e39), ALL), "a finite mean"),
    "no mean": ((None, ALL), "a finite mean"),
    "no shares": (np.zeros(LAYOUT.size), "return a pair: the mean, and a dict from clients to shares"),
    "shares as a list": ((np.zeros(LAYOUT.size), [1.0] * 4), "return a pair"),
    "nothing": (None, "return a pair"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_a_rule_must_not_give_is_refused_by_its_name(kind: str) -> None:
    given, words = WRONG[kind]

    def mistaken(updates: Sequence[Update], layout: Layout) -> Any:
        return given

    with pytest.raises(OptionError, match=f"aggregator 'mistaken' must .*{words}"):
        close(mistaken, made_round())
