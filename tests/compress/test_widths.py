"""JointSQ and FedFQ: bits against brute force, levels against their means."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsparq
from fedsparq import Layout
from fedsparq.methods.bit_allocation import FineGrained, allocate_bits

WIDTHS = {"jointsq": (0, 2, 4, 8), "fedfq": (0, 2, 4, 6, 8)}
JOINT_EDGES = [1.0, 4.0, math.sqrt((15 / 16 / 2) / ((4**-4 - 4**-8) / 4))]


def energies():
    return st.lists(st.floats(0.01, 100), min_size=1, max_size=5)


def left(x, widths):
    return sum(v * v * 4.0**-b for v, b in zip(x, widths, strict=True))


@given(x=energies(), budget=st.integers(0, 44))
@settings(max_examples=60, deadline=None)
def test_fedfqs_bits_are_the_optimum(x, budget):
    vector = np.array(x, np.float32)
    pairs = min(budget // 2, 4 * len(x))
    got = 2 * allocate_bits(vector, 2 * pairs, [1.0, 4.0, 16.0, 64.0], [2] * 4).astype(int)
    best = min(left(vector, w) for w in product(WIDTHS["fedfq"], repeat=len(x)) if sum(w) == 2 * pairs)
    assert got.sum() == 2 * pairs
    assert left(vector, got) <= best * (1 + 1e-6)


@given(x=energies(), budget=st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_jointsqs_bits_are_the_optimum_but_for_one_increment(x, budget):
    """By falling gain per bit, a knapsack is filled to the last thing that no longer fits."""
    vector = np.array(x, np.float32)
    classes = allocate_bits(vector, budget, JOINT_EDGES, [2, 2, 4])
    got = np.array(WIDTHS["jointsq"])[classes]
    assert got.sum() <= budget
    best = min(left(vector, w) for w in product(WIDTHS["jointsq"], repeat=len(x)) if sum(w) <= budget)
    steps = [
        v * v * (4.0**-low - 4.0**-high)
        for v, low in zip(vector, got, strict=True)
        for high in [{0: 2, 2: 4, 4: 8, 8: 8}[int(low)]]
    ]
    assert left(vector, got) <= best + max(steps) + 1e-6 * best


def test_the_edges_of_jointsq():
    assert pytest.approx(21.95, abs=5e-3) == JOINT_EDGES[2]


@pytest.mark.parametrize("name", WIDTHS)
def test_wider_for_larger_and_never_more_bits_than_there_are(name):
    layer = np.random.default_rng(0).laplace(size=5000).astype(np.float32)
    budget = math.ceil(32 * 0.032 * layer.size)
    edges, costs = (JOINT_EDGES, [2, 2, 4]) if name == "jointsq" else ([1.0, 4.0, 16.0, 64.0], [2] * 4)
    widths = np.array(WIDTHS[name])[allocate_bits(layer, budget, edges, costs)]
    assert budget - 3 <= widths.sum() <= budget
    assert (np.diff(widths[np.argsort(np.abs(layer))]) >= 0).all()


def test_among_equals_the_first_get_bits():
    classes = allocate_bits(np.full(10, -0.5, np.float32), 7, JOINT_EDGES, [2, 2, 4])
    assert classes.tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert not allocate_bits(np.zeros(10, np.float32), 7, JOINT_EDGES, [2, 2, 4]).any()


@pytest.mark.parametrize(("name", "counts"), [("jointsq", [2, 8, 128]), ("fedfq", [4, 16, 64, 256])])
def test_what_is_kept_is_unbiased_and_on_its_classs_levels(name, counts):
    layout = Layout.of({"w": (60, 10), "zero": (30,), "none": (0,)})
    update = np.zeros(layout.size, np.float32)
    update[:600] = np.random.default_rng(1).laplace(size=600) * 10.0 ** np.random.default_rng(2).uniform(-2, 1, 600)
    method, total, draws = fedsparq.method(name), np.zeros(layout.size), 3000
    for seed in range(draws):
        payload, _ = method.compress(update, method.init(layout), np.random.default_rng(seed))
        dense = payload.dense()
        total += dense
    edges, costs = (JOINT_EDGES, [2, 2, 4]) if name == "jointsq" else ([1.0, 4.0, 16.0, 64.0], [2] * 4)
    classes = allocate_bits(update[:600], math.ceil(32 * 0.032 * 600) // 2 * 2, edges, costs)
    steps = np.ones(600)
    for number, count in enumerate(counts, 1):
        if (classes == number).any():
            steps[classes == number] = np.abs(update[:600])[classes == number].max() / count
    kept = classes > 0
    ratios = np.abs(dense[:600])[kept] / steps[kept]
    np.testing.assert_allclose(ratios, np.rint(ratios), atol=1e-3)
    assert (np.abs(total[:600] / draws - update[:600])[kept] <= 4.5 * steps[kept] / 2 / np.sqrt(draws)).all()
    assert not total[:600][~kept].any()
    assert not total[600:].any()


def test_annealing_comes_near_the_optimum():
    layer = np.random.default_rng(3).laplace(size=2000).astype(np.float32)
    greedy, annealed = (2 * FineGrained(0.1, solver).classes(layer, 5).astype(int) for solver in ("greedy", "anneal"))
    assert greedy.sum() == annealed.sum()
    start = np.resize([4, 2], 2000)
    best, found, dealt = (float((layer.astype(float) ** 2 * 4.0**-w).sum()) for w in (greedy, annealed, start))
    assert best <= found < best + 0.1 * (dealt - best)
