import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsparq.errors import DataError, OptionError
from fedsparq.lab.tasks.partition import KINDS, class_counts, partition, stratified_order

DRAWN = tuple(kind for kind in KINDS if kind != "natural")
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600)).astype(np.int64)


@pytest.mark.parametrize("kind", DRAWN)
def test_parts_are_sorted_disjoint_and_a_function_of_the_seed(kind):
    parts = partition(LABELS, kind, 20, seed=1)
    together = np.concatenate(parts)
    assert len(parts) == 20
    assert all(part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)
    assert len(np.unique(together)) == len(together) == len(LABELS)
    again = partition(LABELS.copy(), kind, 20, seed=1)
    other = partition(LABELS, kind, 20, seed=2)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(parts, other, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=8), clients=st.integers(1, 12), seed=st.integers(0, 2**32)
)
def test_iid_is_equal_and_class_balanced(counts, clients, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    if len(labels) < clients:
        clients = len(labels)
    parts = partition(labels, "iid", clients, seed=seed, min_examples=1)
    held = class_counts(labels, parts, len(counts))
    assert np.array_equal(held.sum(0), counts)
    assert np.ptp(held.sum(1)) <= 1
    share = np.outer(held.sum(1) / len(labels), counts)
    assert np.abs(held - share).max() < 2.5


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(1, 50), min_size=1, max_size=8), seed=st.integers(0, 2**32))
def test_every_prefix_of_a_stratified_order_has_the_classes_of_the_whole(counts, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    order = stratified_order(labels, np.random.default_rng(seed))
    assert np.array_equal(np.sort(order), np.arange(len(labels)))
    held = np.cumsum(np.eye(len(counts))[labels[order]], axis=0)
    expected = np.outer(np.arange(1, len(labels) + 1) / len(labels), counts)
    assert np.abs(held - expected).max() < 1.5


def test_iid_is_flowers_partition_of_the_stratified_order():
    datasets = pytest.importorskip("datasets")
    from flwr_datasets.partitioner import IidPartitioner

    order = stratified_order(LABELS, np.random.default_rng(7))
    flower = IidPartitioner(num_partitions=7)
    flower.dataset = datasets.Dataset.from_dict({"index": order})
    for client, part in enumerate(partition(LABELS, "iid", 7, seed=7)):
        assert np.array_equal(part, np.sort(flower.load_partition(client)["index"]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("clients", [1, 3, 10, 47])
@pytest.mark.parametrize(
    ("kind", "option"),
    [("dirichlet", 0.05), ("dirichlet", 0.5), ("dirichlet", 100.0), ("shards", 1), ("shards", 2), ("shards", 3)],
)
def test_parts_are_those_of_flwr_datasets(kind, option, clients, seed):
    labels = np.random.default_rng(seed).choice(10, 2_500, p=np.arange(1, 11) / 55).astype(np.int64)
    expected = flower_parts(labels, kind, option, clients, seed)
    if expected is None:
        with pytest.raises(DataError):
            ours(labels, kind, option, clients, seed)
        return
    for part, theirs in zip(ours(labels, kind, option, clients, seed), expected, strict=True):
        assert np.array_equal(part, np.sort(theirs))


def ours(labels, kind, option, clients, seed):
    name = "alpha" if kind == "dirichlet" else "shards_per_client"
    return partition(labels, kind, clients, seed=seed, **{name: option})


def flower_parts(labels, kind, option, clients, seed):
    """The parts by flwr-datasets; None where it refuses, or our limit of hopeless draws does before it."""
    datasets = pytest.importorskip("datasets")
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    if kind == "dirichlet":
        made = partitioner.DirichletPartitioner(clients, "label", alpha=option, min_partition_size=2, seed=seed)
    else:
        made = partitioner.ShardPartitioner(clients, "label", num_shards_per_partition=option, seed=seed)
    made.dataset = datasets.Dataset.from_dict({"label": labels, "index": np.arange(len(labels))})
    try:
        return [np.array(made.load_partition(client)["index"]) for client in range(clients)]
    except ValueError:
        return None


def test_alpha_sets_how_unequal_dirichlet_is():
    def spread(alpha):
        counts = class_counts(LABELS, partition(LABELS, "dirichlet", 10, seed=3, alpha=alpha), 10)
        return float((counts / counts.sum(0)).std())

    assert spread(100.0) < 0.02 < spread(1.0) < spread(0.1)


def test_dirichlet_proportions_have_the_variance_of_the_distribution():
    clients, alpha = 20, 0.5
    shares = []
    for seed in range(10):
        counts = class_counts(LABELS, partition(LABELS, "dirichlet", clients, seed=seed, alpha=alpha), 10)
        shares.append(counts / counts.sum(0))
    expected = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert np.var(np.concatenate(shares)) == pytest.approx(expected, rel=0.2)


def test_shards_hold_few_classes_each():
    counts = class_counts(LABELS, partition(LABELS, "shards", 30, seed=0, shards_per_client=2), 10)
    assert set(counts.sum(1)) == {200}
    assert ((counts > 0).sum(1) <= 2).all()


@pytest.mark.parametrize("kind", DRAWN)
def test_ten_thousand_clients_are_dealt_out_at_once(kind):
    labels = np.random.default_rng(1).integers(0, 10, 250_000)
    began = time.process_time()
    assert len(partition(labels, kind, 10_000, seed=0, alpha=50.0)) == 10_000
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("kind", "clients", "options", "message"),
    [
        ("iid", 4_000, {}, "6000 examples are too few for 4000 clients with at least 2"),
        ("shards", 2_000, {"shards_per_client": 4}, "client 0.*shards_per_client"),
        ("dirichlet", 3_000, {"alpha": 100.0}, "client 0 has 0"),
        ("dirichlet", 100, {"alpha": 0.001}, r"client \d+ has 0.*larger alpha"),
        ("dirichlet", 10, {"alpha": 1e308}, "client 0 has 0"),
        ("dirichlet", 20, {"min_examples": 200}, r"fewer than 200 examples \(client \d+ has \d+\)"),
    ],
)
def test_too_few_examples_are_refused_with_a_way_out(kind, clients, options, message):
    with pytest.raises(DataError, match=message):
        partition(LABELS, kind, clients, seed=0, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("random", 3), "choose from iid, dirichlet, shards"),
        (("iid", 0), "clients must be at least 1"),
        (("dirichlet", 3, {"alpha": 0.0}), "alpha must be a number above 0"),
        (("dirichlet", 3, {"alpha": float("nan")}), "alpha must be a number above 0"),
        (("shards", 3, {"shards_per_client": 0}), "shards_per_client must be at least 1"),
    ],
)
def test_impossible_arguments_are_refused(arguments, message):
    kind, clients, *options = arguments
    with pytest.raises(OptionError, match=message):
        partition(LABELS, kind, clients, seed=0, **(options[0] if options else {}))


def test_class_counts_count():
    counts = class_counts(np.array([0, 1, 1, 2]), [np.array([0, 1]), np.array([2, 3])], 4)
    assert counts.tolist() == [[1, 1, 0, 0], [0, 1, 1, 0]]


def test_natural_clients_are_the_owners_with_most_examples():
    owners = np.array([3, 1, 1, 0, 3, 2, 1, 0, 4])
    labels = np.zeros(len(owners), np.int64)
    parts = partition(labels, "natural", 4, seed=0, owners=owners)
    assert [part.tolist() for part in parts] == [[1, 2, 6], [3, 7], [0, 4], [5]]
    fewer = partition(labels, "natural", 2, seed=9, owners=owners)
    assert [part.tolist() for part in fewer] == [[1, 2, 6], [3, 7]]


def test_natural_needs_owners_and_enough_of_them():
    with pytest.raises(DataError, match="client_column"):
        partition(LABELS, "natural", 3, seed=0)
    with pytest.raises(DataError, match="has 2 clients by nature, 3 are asked for"):
        partition(LABELS[:4], "natural", 3, seed=0, owners=np.array([0, 1, 1, 0]))
