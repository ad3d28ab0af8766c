"""The private mean: bounded by the clip whatever a client does, noise everywhere, a constant divisor."""

import math

import numpy as np
import pytest
from scipy.stats import chi2, kstest

from fedsparq import Layout, Payload
from fedsparq.aggregate import PrivateMean, Support
from fedsparq.aggregate.private import most_participations
from fedsparq.privacy.noise import system_noise
from fedsparq.protocols import Aggregate, Update

LAYOUT = Layout.of({"w": (40, 50)})


def quiet(count: int) -> np.ndarray:
    return np.zeros(count)


def round_of(mean: PrivateMean, vectors: list[np.ndarray], state: dict[str, np.ndarray] | None = None) -> Aggregate:
    accumulator = mean.open(LAYOUT, state or mean.init(LAYOUT))
    for client, vector in enumerate(vectors):
        accumulator.add(Update(client, Payload.full(LAYOUT, vector.astype(np.float32)), 10 + client))
    return accumulator.close()


def test_noise_is_standard_normal() -> None:
    drawn = system_noise(20_001)
    assert kstest(drawn, "norm").pvalue > 1e-4
    assert not np.array_equal(drawn[:10], system_noise(10))


def test_the_noise_has_its_variance_also_where_nobody_sent() -> None:
    mean = PrivateMean(clip=0.5, noise=3.0, divisor=10.0, clients=4, rounds=5)
    vector = np.zeros(LAYOUT.size)
    vector[:100] = 0.01
    noise = (round_of(mean, [vector] * 4).mean * 10.0 - 4 * vector) / (3.0 * 0.5)
    for part in (noise[:100], noise[100:]):
        statistic = float((part**2).sum())
        assert 1e-4 < chi2.cdf(statistic, part.size) < 1 - 1e-4


def test_on_a_support_the_noise_is_on_all_of_it_and_nowhere_else() -> None:
    support = Support(fraction=0.2)
    mean = PrivateMean(clip=1.0, noise=1.0, divisor=2.0, clients=2, rounds=5, support=support)
    state = mean.init(LAYOUT)
    plan = mean.plan(LAYOUT, state).support
    assert plan is not None
    indices = plan.indices(LAYOUT.size)
    accumulator = mean.open(LAYOUT, state)
    accumulator.add_sum(np.zeros(indices.size, np.int64), [0, 1])
    result = accumulator.close()
    assert result.mean is not None
    assert np.flatnonzero(result.mean).tolist() == indices.tolist()
    assert 1e-4 < chi2.cdf(float(((2.0 * result.mean[indices]) ** 2).sum()), indices.size) < 1 - 1e-4


def test_all_count_alike_over_a_constant() -> None:
    mean = PrivateMean(clip=20.0, noise=1.0, divisor=8.0, clients=3, rounds=5, draw=quiet)
    vectors = [np.full(LAYOUT.size, 0.1 * (client + 1)) for client in range(3)]
    np.testing.assert_allclose(round_of(mean, vectors).mean, 0.6 / 8, rtol=1e-6)
    np.testing.assert_allclose(round_of(mean, vectors[:1]).mean, 0.1 / 8, rtol=1e-6)


@pytest.mark.parametrize(("clients", "half"), [(2_000, 1024.0), (10_000, 4096.0)])
def test_one_client_moves_the_sum_by_the_clip_however_many_others_there_are(clients: int, half: float) -> None:
    """The worst order for float32: with the client the sum stays just above a power of two, where what the last clients
    take from it is rounded away; without, it is just below, where it is rounded up."""
    mean = PrivateMean(clip=1.0, noise=0.0, divisor=1.0, clients=clients, rounds=5, draw=quiet)
    ulp = float(np.spacing(np.float32(half - 1)))
    before = [1.0] * (int(half) - 1) + [0.5]
    after = [-0.51 * ulp] * (clients - len(before) - 1)
    sums = []
    for victim in (1.0, 0.0):
        accumulator = mean.open(LAYOUT, mean.init(LAYOUT))
        for client, value in enumerate([*before, victim, *after]):
            vector = np.zeros(LAYOUT.size, np.float32)
            vector[0] = value
            accumulator.add(Update(client, Payload.full(LAYOUT, vector), 1))
        result = accumulator.close().mean
        assert result is not None
        sums.append(float(result[0]))
    assert sums[0] - sums[1] == pytest.approx(1.0, abs=2e-3)


def test_what_is_longer_than_the_clip_does_not_count() -> None:
    mean = PrivateMean(clip=1.0, noise=1.0, divisor=1.0, clients=2, rounds=5, draw=quiet)
    fair, long = np.zeros(LAYOUT.size), np.zeros(LAYOUT.size)
    fair[0], long[1] = 1.0, 1.01
    result = round_of(mean, [fair, long])
    assert result.shares == {0: 1.0, 1: 0.0}
    assert result.mean is not None
    assert result.mean[1] == 0


def test_a_client_counts_in_no_more_rounds_than_it_may() -> None:
    mean = PrivateMean(clip=1.0, noise=1.0, divisor=1.0, clients=2, rounds=2, draw=quiet)
    state, vector = mean.init(LAYOUT), np.full(LAYOUT.size, 0.01)
    for number in range(4):
        result = round_of(mean, [vector], state)
        assert result.shares == {0: float(number < 2)}
        state = dict(result.state)
        assert most_participations(state) == min(number + 1, 2)


@pytest.mark.parametrize("seed", range(5))
def test_taking_a_client_away_moves_the_sum_by_no_more_than_the_clip(seed: int) -> None:
    mean = PrivateMean(clip=0.7, noise=1.0, divisor=1.0, clients=6, rounds=5, draw=quiet)
    rng = np.random.default_rng(seed)
    vectors = [rng.normal(size=LAYOUT.size) for _ in range(6)]
    vectors = [vector * 0.7 * (1 - 1e-6) / np.linalg.norm(vector) for vector in vectors]
    all_of_them, without = round_of(mean, vectors).mean, round_of(mean, vectors[:-1]).mean
    assert all_of_them is not None
    assert without is not None
    assert np.linalg.norm(all_of_them.astype(float) - without) <= 0.7


def test_an_audit_finds_no_more_than_was_promised() -> None:
    """Is client 3 in the sum? The best test there is, on 4,000 sums with it and 4,000 without: a lower bound of epsilon
    from its errors (Clopper and Pearson at 99 %) must stay below the promise, and come near it."""
    from scipy.stats import beta

    from fedsparq.privacy import epsilon_of

    small, noise, delta, tries = Layout.of({"w": (4,)}), 1.0, 1e-5, 4000
    mean = PrivateMean(clip=1.0, noise=noise, divisor=1.0, clients=4, rounds=1)
    canary = np.array([0.5, 0.5, 0.5, 0.4999], np.float32)

    def score(members: int) -> float:
        accumulator = mean.open(small, mean.init(small))
        for client in range(members):
            accumulator.add(Update(client, Payload.full(small, canary), 1))
        summed = accumulator.close().mean
        assert summed is not None
        return float(summed @ canary)

    inside, outside = [np.array([score(members) for _ in range(tries)]) for members in (4, 3)]
    found = 0.0
    for threshold in np.linspace(2.5, 6.0, 15):
        hits, false = int((inside > threshold).sum()), int((outside > threshold).sum())
        least = beta.ppf(0.005, hits, tries - hits + 1) if hits else 0.0
        most = beta.ppf(0.995, false + 1, tries - false)
        if least > delta:
            found = max(found, math.log((least - delta) / most))
    assert 1.0 < found < epsilon_of(delta, noise, 1)


def test_with_poisson_sampling_an_audit_finds_no_more_than_its_smaller_promise() -> None:
    """As above, but the client is in by a coin; its own coin is all that it has beside the noise."""
    pytest.importorskip("dp_accounting", reason="the extra `privacy`")
    from scipy.stats import beta

    from fedsparq.lab.specs.run import poisson_clients
    from fedsparq.privacy import epsilon_of, poisson_epsilon

    small, noise, rate, delta, tries = Layout.of({"w": (2,)}), 0.5, 0.3, 1e-3, 4000
    mean = PrivateMean(clip=1.0, noise=noise, divisor=1.0, clients=3, rounds=1)
    canary = Payload.full(small, np.array([1.0, 0.0], np.float32))

    def score(there: bool) -> float:
        accumulator = mean.open(small, mean.init(small))
        if there and 2 in poisson_clients(3, rate):
            accumulator.add(Update(2, canary, 1))
        summed = accumulator.close().mean
        assert summed is not None
        return float(summed[0])

    inside, outside = [np.array([score(there) for _ in range(tries)]) for there in (True, False)]
    found = 0.0
    for threshold in np.linspace(0.5, 2.0, 7):
        hits, false = int((inside > threshold).sum()), int((outside > threshold).sum())
        least, most = beta.ppf(1e-5, max(hits, 1), tries - hits + 1), beta.ppf(1 - 1e-5, false + 1, tries - false)
        found = max(found, math.log(max(least - delta, 1e-9) / most))
    assert 0.5 < found < poisson_epsilon(delta, noise, rate, 1) < epsilon_of(delta, noise, 1)
