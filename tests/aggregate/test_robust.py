"""Robust aggregators against straight-line numpy on dense vectors, and what each promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from made_round import LAYOUT, buffers_of, statistics
from numpy.typing import NDArray

import fedsparq
from fedsparq.aggregate import (
    CenteredClipping,
    CoordinateMedian,
    FLTrust,
    GeometricMedian,
    MultiKrum,
    Robust,
    TrimmedMean,
)
from fedsparq.errors import OptionError
from fedsparq.layout import Buffers
from fedsparq.payload import Payload
from fedsparq.protocols import Aggregate, Aggregator, Update

Matrix = NDArray[np.float64]
CLIENTS = 9


def made(count: int = CLIENTS, seed: int = 0, sparse: bool = True) -> list[Update]:
    """Updates of clients that agree somewhat, each with coordinates and a length of its own; the last one lies."""
    rng, common, found = np.random.default_rng(seed), np.random.default_rng(99).normal(size=LAYOUT.size), []
    for client in range(count):
        vector = ((0.5 + client / 5) * (common + rng.normal(size=LAYOUT.size))).astype(np.float32)
        if client == count - 1:
            vector *= np.float32(-20)
        kept = np.flatnonzero(rng.random(LAYOUT.size) < 0.4)
        payload = Payload.sparse(LAYOUT, kept, vector[kept]) if sparse else Payload.full(LAYOUT, vector)
        wild = 1e5 if client == count - 1 else 1.0
        buffers = Buffers((wild * rng.random(LAYOUT.buffer_size)).astype(np.float32), np.array([client], np.int64))
        found.append(Update(client, replace(payload, buffers=buffers), 10))
    return found


def dense(updates: list[Update]) -> Matrix:
    return np.stack([update.payload.dense().astype(np.float64) for update in updates])


def close(rule: Aggregator, updates: list[Update], state: Any = None) -> Aggregate:
    accumulator = rule.open(LAYOUT, rule.init(LAYOUT) if state is None else state)
    if hasattr(accumulator, "begin"):
        accumulator.begin(np.zeros(LAYOUT.size, np.float32), None, 1)
    for update in updates:
        accumulator.add(update)
    return accumulator.close()


def mean_of(found: Aggregate) -> NDArray[np.float32]:
    assert found.mean is not None
    return found.mean


def clipped(u: Matrix, center: NDArray[np.float64], buckets: list[list[int]], radius: float) -> tuple[Any, list[float]]:
    """Centered clipping as its authors write it, buckets weighted by their size."""
    means = [u[bucket].mean(axis=0) for bucket in buckets]
    distances = [float(np.linalg.norm(mean - center)) for mean in means]
    tau = radius or float(np.median(distances))
    kept = [min(1.0, tau / distance) for distance in distances]
    moved = center.copy()
    for bucket, mean, share in zip(buckets, means, kept, strict=True):
        moved += len(bucket) / len(u) * share * (mean - center)
    shares = [0.0] * len(u)
    for bucket, share in zip(buckets, kept, strict=True):
        for at in bucket:
            shares[at] = share
    return moved, shares


def dealt(count: int, size: int, number: int) -> list[list[int]]:
    order = np.random.default_rng([number, 10]).permutation(count) if size > 1 else np.arange(count)
    return [order[at : at + size].tolist() for at in range(0, count, size)]


@pytest.mark.parametrize("radius", [0.0, 4.0])
@pytest.mark.parametrize("bucket", [1, 2])
@pytest.mark.parametrize("center", ["last", "zero"])
def test_centered_clipping_over_two_rounds(radius: float, bucket: int, center: Any) -> None:
    rule, state, last = CenteredClipping(radius, bucket, center), None, np.zeros(LAYOUT.size)
    for number in range(2):
        updates = made(seed=number)
        found = close(rule, updates, state)
        expected, shares = clipped(dense(updates), last, dealt(CLIENTS, bucket, number), radius)
        np.testing.assert_allclose(mean_of(found), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose([found.shares[client] for client in range(CLIENTS)], shares, rtol=1e-5)
        state, last = found.state, expected if center == "last" else last


def test_displacement_is_bounded() -> None:
    """f attackers of n, whatever they send, move the mean by at most s f radius / n: that of their buckets."""
    rng, radius = np.random.default_rng(3), 2.0
    for size in (1, 2, 3):
        buckets = dealt(CLIENTS, size, 0)
        for length in (1e-3, 1.0, 1e3, 1e6):
            updates = made()
            for liar in (2, 5):
                lie = rng.normal(size=LAYOUT.size).astype(np.float32)
                updates[liar] = Update(liar, Payload.full(LAYOUT, lie * np.float32(length)), 10)
            u = dense(updates)
            honest = np.zeros(LAYOUT.size)
            for bucket in buckets:
                if not {2, 5} & set(bucket):
                    mean = u[bucket].mean(axis=0)
                    honest += len(bucket) / CLIENTS * mean * min(1, radius / np.linalg.norm(mean))
            moved = np.linalg.norm(mean_of(close(CenteredClipping(radius, size), updates)) - honest)
            assert moved <= size * 2 * radius / CLIENTS * (1 + 1e-5)


def krum(u: Matrix, left_out: int) -> list[int]:
    """Multi-Krum as its authors write it: the sum of squared distances to the n - f - 2 closest others."""
    scores = []
    for i in range(len(u)):
        apart = sorted(float(((u[i] - u[j]) ** 2).sum()) for j in range(len(u)) if j != i)
        scores.append(sum(apart[: len(u) - left_out - 2]))
    return sorted(sorted(range(len(u)), key=lambda i: scores[i])[: len(u) - left_out])


def test_multi_krum() -> None:
    updates = made(12)
    u = dense(updates)
    norms = np.linalg.norm(u, axis=1)
    cut = u * np.minimum(1, np.median(norms) / norms)[:, None]
    chosen = krum(cut, 3)
    found = close(MultiKrum(0.25), updates)
    np.testing.assert_allclose(mean_of(found), cut[chosen].mean(axis=0), rtol=1e-4, atol=1e-5)
    assert 11 not in chosen
    assert {client for client, share in found.shares.items() if share} == set(chosen)


def test_geometric_median() -> None:
    updates = made()
    u, point = dense(updates), np.zeros(LAYOUT.size)
    for _ in range(3):
        distances = np.linalg.norm(u - point, axis=1)
        weights = 1 / np.maximum(distances, 0.1 * np.median(distances))
        weights /= weights.sum()
        point = weights @ u
    found = close(GeometricMedian(), updates)
    np.testing.assert_allclose(mean_of(found), point, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(list(found.shares.values()), np.minimum(1, weights * CLIENTS), rtol=1e-5)
    far, near = np.linalg.norm(u.mean(axis=0)), np.linalg.norm(point)
    assert near < far / 3, "the liar has moved the mean, not the median"


def test_many_steps_reach_the_point_of_least_distances() -> None:
    updates = made()
    u, found = dense(updates), mean_of(close(GeometricMedian(300, 1e-6), made()))
    least = np.linalg.norm(u - found, axis=1).sum()
    rng = np.random.default_rng(1)
    for _ in range(200):
        assert np.linalg.norm(u - found - 1e-2 * rng.normal(size=LAYOUT.size), axis=1).sum() > least


def test_fltrust() -> None:
    updates, own = made(), np.random.default_rng(99).normal(size=LAYOUT.size).astype(np.float32)
    u = dense(updates)
    norms, length = np.linalg.norm(u, axis=1), float(np.linalg.norm(own))
    trust = np.maximum(u @ own / norms / length, 0)
    expected = (trust / norms * length) @ u / trust.sum()
    found = close(FLTrust(train=lambda vector, buffers, number: own), updates)
    np.testing.assert_allclose(mean_of(found), expected, rtol=1e-4, atol=1e-5)
    assert found.shares[CLIENTS - 1] == 0


def test_fltrust_without_a_clean_set_is_refused() -> None:
    with pytest.raises(OptionError, match="a small clean set at the server"):
        FLTrust().open(LAYOUT, {})


@pytest.mark.parametrize("sparse", [False, True])
def test_coordinate_rules(sparse: bool) -> None:
    updates = made(sparse=sparse)
    u = dense(updates)
    np.testing.assert_allclose(mean_of(close(CoordinateMedian(), updates)), np.median(u, axis=0), atol=1e-6)
    middle = np.sort(u, axis=0)[2:-2].mean(axis=0)
    np.testing.assert_allclose(mean_of(close(TrimmedMean(0.2), updates)), middle, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["fedsparq", "fedsparq-adaptive", "top-10", "random-10", "fedpaq", "stc"])
@pytest.mark.parametrize("rule", [CoordinateMedian(), TrimmedMean()])
def test_coordinate_rules_are_refused_for_own_supports(method: str, rule: Aggregator) -> None:
    with pytest.raises(OptionError, match=r"coordinates of its own.*Take the aggregator 'robust'"):
        fedsparq.method(method).with_server(aggregator=rule)


@pytest.mark.parametrize("method", ["fedavg", "float16", "fedadam"])
def test_coordinate_rules_with_every_coordinate(method: str) -> None:
    assert fedsparq.method(method).with_server(aggregator=CoordinateMedian()).aggregator == CoordinateMedian()


INFINITE: dict[str, Aggregator] = {
    "centered-clipping": CenteredClipping(1e30, bucket=1),
    "in buckets": CenteredClipping(1e30),
    "endless": CenteredClipping(1e300),
    "multi-krum": MultiKrum(0.0),
    "geometric-median": GeometricMedian(3, 1e9),
    "trimmed-mean": TrimmedMean(0.0),
    "robust": Robust(1e30),
}


@pytest.mark.parametrize("name", INFINITE)
def test_without_bounds_each_is_the_mean(name: str) -> None:
    updates = made(sparse=False)[:-1] if name == "robust" else made(sparse=False)
    found = close(INFINITE[name], updates)
    np.testing.assert_allclose(mean_of(found), dense(updates).mean(axis=0), rtol=1e-4, atol=1e-4)
    assert all(share == pytest.approx(1) for share in found.shares.values())
    assert not found.let_go
    if name != "geometric-median":
        assert found.buffers is not None
        np.testing.assert_allclose(found.buffers.statistics, statistics(updates).mean(axis=0), rtol=1e-5)


OWN = np.random.default_rng(5).normal(size=LAYOUT.size).astype(np.float32)
RULES: dict[str, Aggregator] = {
    "centered-clipping": CenteredClipping(bucket=1),
    "in buckets": CenteredClipping(),
    "multi-krum": MultiKrum(),
    "geometric-median": GeometricMedian(),
    "fltrust": FLTrust(train=lambda vector, buffers, number: OWN),
    "coordinate-median": CoordinateMedian(),
    "trimmed-mean": TrimmedMean(),
    "robust": Robust(),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("length", [1.0, 1e3, 1e6])
def test_no_lie_moves_the_mean_far_however_long_it_is(name: str, length: float) -> None:
    """Two liars of nine: the result stays among the honest updates."""
    updates = made(CLIENTS + 1, sparse=name not in ("coordinate-median", "trimmed-mean"))[:CLIENTS]
    longest = np.linalg.norm(dense(updates), axis=1).max()
    for liar in (2, 5):
        lie = np.random.default_rng(liar).normal(size=LAYOUT.size) - 1
        updates[liar] = Update(liar, Payload.full(LAYOUT, (length * lie).astype(np.float32)), 10)
    assert np.linalg.norm(mean_of(close(RULES[name], updates))) < longest


def test_robust_gives_each_liar_its_radius_at_most() -> None:
    """f attackers move the sum by f radius at most: what counts of a reply is never longer."""
    updates = made(CLIENTS + 1)[:CLIENTS]
    for liar in (2, 5):
        lie = 1e5 * np.random.default_rng(liar).normal(size=LAYOUT.size)
        updates[liar] = Update(liar, Payload.full(LAYOUT, lie.astype(np.float32)), 10)
    norms, found = np.linalg.norm(dense(updates), axis=1), close(Robust(), updates)
    counted = np.array([found.shares[client] for client in range(CLIENTS)]) * norms
    assert (counted <= 2 * np.median(norms) * (1 + 1e-6)).all()
    without = np.delete(np.arange(CLIENTS), (2, 5))
    honest = np.array([found.shares[client] for client in without]) @ dense(updates)[without] / CLIENTS
    assert np.linalg.norm(mean_of(found) - honest) <= 2 * 2 * np.median(norms) / CLIENTS * (1 + 1e-6)


def test_geometric_median_of_mostly_nothing_is_nothing() -> None:
    updates = [Update(client, Payload.full(LAYOUT, np.zeros(LAYOUT.size, np.float32)), 1) for client in range(5)]
    updates += [replace(update, client=update.client + 5) for update in made(4)]
    assert not mean_of(close(GeometricMedian(), updates)).any()


@pytest.mark.parametrize("name", RULES)
def test_order_of_arrival_changes_nothing(name: str) -> None:
    updates = made(4)
    found = [close(RULES[name], list(order)) for order in permutations(updates)]
    for other in found[1:]:
        assert other.shares == found[0].shares
        if name != "fltrust":
            assert np.array_equal(mean_of(other), mean_of(found[0]))
        np.testing.assert_allclose(mean_of(other), mean_of(found[0]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_a_liar_does_not_choose_the_statistics(name: str) -> None:
    updates = made()
    found = close(RULES[name], updates).buffers
    assert found is not None
    honest = statistics(updates[:-1])
    assert (found.statistics >= 0).all(), "a variance stays one"
    assert np.abs(found.statistics - honest.mean(axis=0)).max() < 1.5
    assert found.counters[0] == sorted(buffers_of(update).counters[0] for update in updates)[(CLIENTS - 1) // 2]


@pytest.mark.parametrize("name", RULES)
def test_one_update_alone(name: str) -> None:
    (update,) = made(1)
    found = close(RULES[name], [update])
    assert np.isfinite(mean_of(found)).all()
    assert 0 <= found.shares[0] <= 1


@pytest.mark.parametrize("name", RULES)
def test_updates_of_nothing(name: str) -> None:
    updates = [Update(client, Payload.full(LAYOUT, np.zeros(LAYOUT.size, np.float32)), 1) for client in range(5)]
    assert not mean_of(close(RULES[name], updates)).any()


@pytest.mark.parametrize("name", RULES)
def test_at_most_half_of_a_reply_goes_back(name: str) -> None:
    found = close(RULES[name], made())
    for client, share in found.shares.items():
        assert 0.5 <= share + found.let_go.get(client, 0.0) <= 1
        assert (client in found.let_go) == (share < 0.5)


def test_rounds_are_read_again_where_bytes_are_at_hand() -> None:
    """Payloads are not held: only what makes them again."""
    updates, read = made(), []

    def again(payload: Payload) -> Callable[[], Payload]:
        return lambda: (read.append(1), payload)[1]

    found = close(CenteredClipping(), [replace(update, reread=again(update.payload)) for update in updates])
    assert np.array_equal(mean_of(found), mean_of(close(CenteredClipping(), updates)))
    assert len(read) >= CLIENTS


@pytest.mark.parametrize(("method", "weighting"), [("fedsparq", "uniform"), ("fedsparq-adaptive", "examples")])
def test_robust_weighs_as_the_method_does(method: str, weighting: str) -> None:
    chosen = fedsparq.method(method).with_server(aggregator=Robust())
    assert chosen.aggregator == Robust(weighting=weighting)  # type: ignore[arg-type]


def test_no_client_weighs_more_than_three_times_the_median() -> None:
    updates = [replace(each, weight=weight) for each, weight in zip(made(5)[:4], (1, 2, 2, 1e9), strict=True)]
    found = mean_of(close(Robust(1e30), updates))
    np.testing.assert_allclose(found, np.average(dense(updates), axis=0, weights=[1, 2, 2, 6]), rtol=1e-4, atol=1e-5)


def similarity_weights(u: Matrix, reach: float = 2.0) -> tuple[Any, list[float]]:
    """The three steps of the rule, client by client."""
    n, norms = len(u), np.linalg.norm(u, axis=1)
    lengths = np.minimum(norms, reach * np.median(norms))
    cosine = [[float(u[i] @ u[j] / norms[i] / norms[j]) for j in range(n)] for i in range(n)]
    pairs = [cosine[i][j] for i in range(n) for j in range(i)]
    usual = np.median(pairs)
    limit = min(usual + 4 * 1.4826 * np.median(np.abs(pairs - usual)), 0.95)
    alike = [
        [1.0 if i == j else min(max((cosine[i][j] - limit) / (1 - limit), 0), 1) for j in range(n)] for i in range(n)
    ]
    voice = [1 / sum(row) for row in alike]
    agreement = []
    for i in range(n):
        others = [(1 - alike[i][j]) * voice[j] * lengths[j] for j in range(n)]
        agreement.append(sum(weight * cosine[i][j] for j, weight in enumerate(others)) / sum(others))
    usual = np.median(agreement)
    least = usual - 2 * 1.4826 * np.median(np.abs(agreement - usual))
    voice = [0.0 if agreement[i] < 0 and agreement[i] < least else voice[i] for i in range(n)]
    shares = [voice[i] * lengths[i] / norms[i] for i in range(n)]
    return np.array(shares) @ u / sum(voice), shares


@pytest.mark.parametrize("lie", ["backwards", "one voice", "long", "none"])
def test_robust_against_its_three_steps(lie: str) -> None:
    updates = made(12)[:11]
    common = np.random.default_rng(99).normal(size=LAYOUT.size)
    for liar in (3, 9) if lie != "none" else ():
        noise = np.random.default_rng(liar).normal(size=LAYOUT.size)
        vector = {"backwards": 0.7 * noise - 2 * common, "one voice": 0.05 * noise - common, "long": 1e4 * noise}[lie]
        updates[liar] = Update(liar, Payload.full(LAYOUT, vector.astype(np.float32)), 10)
    expected, shares = similarity_weights(dense(updates))
    found = close(Robust(), updates)
    np.testing.assert_allclose(mean_of(found), expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose([found.shares[client] for client in range(11)], shares, rtol=1e-3, atol=1e-6)
    if lie in ("backwards", "one voice"):
        assert [client for client, share in found.shares.items() if not share] == [3, 9]
    if lie == "none":
        assert min(shares) > 0


def test_sketches_keep_inner_products() -> None:
    from fedsparq import Layout
    from fedsparq.aggregate.robust import sketch

    layout, rng = Layout.of({"weight": (300, 200)}), np.random.default_rng(0)
    first = rng.normal(size=60_000).astype(np.float32)
    second = (0.5 * first + rng.normal(size=60_000)).astype(np.float32)
    short = [sketch(Payload.full(layout, vector), 7).astype(np.float64) for vector in (first, second)]
    true = float(first.astype(np.float64) @ second) / np.linalg.norm(first) / np.linalg.norm(second)
    assert short[0] @ short[1] / np.linalg.norm(first) / np.linalg.norm(second) == pytest.approx(true, abs=0.03)
