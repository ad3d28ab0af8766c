"""SparseFed's server step, against the five lines of its definition."""

import numpy as np
import pytest

from fedsparq.aggregate import clipped_mean
from fedsparq.layout import Layout
from fedsparq.optimize import SparseStep, Step
from fedsparq.payload import Payload
from fedsparq.protocols import Update

LAYOUT = Layout.of({"weight": (10, 10)})


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_against_the_definition(momentum: float) -> None:
    rule, rng = SparseStep(0.07, momentum), np.random.default_rng(0)
    model, state = np.zeros(100, np.float32), rule.init(LAYOUT)
    w, v, e = np.zeros(100), np.zeros(100), np.zeros(100)
    for _ in range(8):
        mean = rng.normal(size=100).astype(np.float32)
        before = model
        model, state = rule.step(model, mean, state)
        v = momentum * v + mean
        e = e + v
        top = np.argsort(-np.abs(e))[:7]
        w[top] += e[top]
        e[top], v[top] = 0, 0
        np.testing.assert_allclose(model, w, atol=1e-5)
        np.testing.assert_allclose(state["error"], e, atol=1e-5)
        assert (model != before).sum() == 7, "exactly k coordinates move"


def test_nothing_is_lost_on_the_server() -> None:
    rule, rng = SparseStep(0.05), np.random.default_rng(1)
    model, state, total = np.zeros(100, np.float32), rule.init(LAYOUT), np.zeros(100)
    for _ in range(20):
        mean = rng.normal(size=100).astype(np.float32)
        total += mean
        model, state = rule.step(model, mean, state)
    np.testing.assert_allclose(model + state["error"], total, atol=1e-4)


def test_everything_moved_is_the_plain_step() -> None:
    mean, model = np.arange(100, dtype=np.float32), np.ones(100, np.float32)
    moved, _ = SparseStep(1.0).step(model, mean, SparseStep(1.0).init(LAYOUT))
    assert np.array_equal(moved, Step().step(model, mean, {})[0])


def test_states_are_not_changed_in_place() -> None:
    rule, model = SparseStep(0.1, 0.5), np.zeros(100, np.float32)
    state = rule.step(model, np.ones(100, np.float32), rule.init(LAYOUT))[1]
    before = {name: array.copy() for name, array in state.items()}
    rule.step(model, np.ones(100, np.float32), state)
    assert not model.any()
    assert all(np.array_equal(state[name], before[name]) for name in before)


def test_one_huge_reply_moves_the_mean_by_at_most_the_clip() -> None:
    rule, rng = clipped_mean(1.0), np.random.default_rng(2)
    honest = [rng.normal(size=100).astype(np.float32) / 20 for _ in range(9)]
    huge = np.full(100, 1e8, np.float32)

    def mean(vectors: list[np.ndarray]) -> np.ndarray:
        accumulator = rule.open(LAYOUT, rule.init(LAYOUT))
        for client, vector in enumerate(vectors):
            accumulator.add(Update(client, Payload.full(LAYOUT, vector), 1))
        found = accumulator.close().mean
        assert found is not None
        return found

    moved = mean([*honest, huge]) - mean([*honest, np.zeros(100, np.float32)])
    assert np.linalg.norm(moved) == pytest.approx(1 / 10, rel=1e-5)
