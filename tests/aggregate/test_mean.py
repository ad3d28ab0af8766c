"""The mean of a round, against numpy's."""

import gc
import weakref

import numpy as np
import pytest
from made_round import CLIENTS, EXAMPLES, LAYOUT, buffers_of, dense, made_round, statistics

from fedsparq.aggregate import Mean
from fedsparq.aggregate.buffers import BufferMean
from fedsparq.errors import OptionError
from fedsparq.layout import Buffers
from fedsparq.payload import Payload
from fedsparq.protocols import Aggregate, Aggregator, Update, Weighting


def close(aggregator: Aggregator, updates: list[Update]) -> Aggregate:
    accumulator = aggregator.open(LAYOUT, aggregator.init(LAYOUT))
    for update in updates:
        accumulator.add(update)
    return accumulator.close()


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_mean_and_buffers(weighting: Weighting) -> None:
    updates = made_round(weighting)
    weights = EXAMPLES if weighting == "examples" else None
    found = close(Mean(weighting), updates)
    assert found.mean is not None
    assert found.mean.dtype == np.float32
    np.testing.assert_allclose(found.mean, np.average(dense(updates), axis=0, weights=weights), atol=1e-6)
    assert found.buffers is not None
    expected = np.average(statistics(updates), axis=0, weights=weights)
    np.testing.assert_allclose(found.buffers.statistics, expected, atol=1e-6)
    assert found.buffers.counters.tolist() == [max(buffers_of(update).counters[0] for update in updates)]
    assert found.shares == dict.fromkeys(CLIENTS, 1.0)
    assert found.state == {}


def test_server_weighs_as_the_aggregator_says() -> None:
    """The weight is in the update already; the aggregator only says which it wants."""
    assert (Mean().weighting, Mean("examples").weighting) == ("uniform", "examples")
    assert not np.allclose(close(Mean(), made_round("examples")).mean, close(Mean(), made_round("uniform")).mean)


def test_wrong_weighting_is_refused() -> None:
    with pytest.raises(OptionError, match=r"weighting='votes' is not possible for Mean: .*'examples' or 'uniform'"):
        Mean("votes")  # type: ignore[arg-type]


def test_one_update_is_its_own_mean() -> None:
    update = made_round()[0]
    found = close(Mean("examples"), [update])
    assert np.array_equal(found.mean, update.payload.dense())  # type: ignore[arg-type]
    assert np.array_equal(found.buffers.statistics, buffers_of(update).statistics)  # type: ignore[union-attr]


def test_rounds_do_not_see_each_other() -> None:
    mean, updates = Mean(), made_round()
    first, second = mean.open(LAYOUT, {}), mean.open(LAYOUT, {})
    first.add(updates[0])
    second.add(updates[1])
    assert np.array_equal(first.close().mean, updates[0].payload.dense())  # type: ignore[arg-type]
    assert second.close().shares == {updates[1].client: 1.0}


def test_no_payload_is_held() -> None:
    """Updates are added up as they come: memory does not grow with the number of clients."""
    accumulator = Mean().open(LAYOUT, {})
    seen = []
    for client in range(5):
        payload = Payload.full(LAYOUT, np.ones(LAYOUT.size, np.float32))
        seen.append(weakref.ref(payload))
        accumulator.add(Update(client, payload, 1))
    del payload
    gc.collect()
    assert [ref() for ref in seen] == [None] * 5
    assert np.array_equal(accumulator.close().mean, np.ones(LAYOUT.size))


def test_buffers_of_none_are_none() -> None:
    assert BufferMean().mean() is None
    running = BufferMean()
    running.add(None, 3.0)
    assert running.mean() is None


def test_buffers_are_weighted_in_float64_and_counters_are_the_largest() -> None:
    running = BufferMean()
    given = [(Buffers(np.array([value], np.float32), np.array([count])), weight) for value, count, weight in (
        (1e8, 2**60, 1.0), (1.0, 2**60 + 1, 1.0), (-1e8, 5, 1.0), (3.0, 7, 0.5)
    )]  # fmt: skip
    for buffers, weight in given:
        running.add(buffers, weight)
    mean = running.mean()
    assert mean is not None
    assert mean.statistics.dtype == np.float32
    assert mean.statistics[0] == np.float32(2.5 / 3.5)
    assert mean.counters.tolist() == [2**60 + 1]


def test_buffers_given_are_not_changed() -> None:
    running, first = BufferMean(), Buffers(np.ones(2, np.float32), np.array([1]))
    running.add(first, 2.0)
    running.add(Buffers(np.zeros(2, np.float32), np.array([9])), 2.0)
    running.mean()
    assert first.statistics.tolist() == [1, 1]
    assert first.counters.tolist() == [1]
