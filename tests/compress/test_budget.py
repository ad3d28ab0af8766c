"""Budgets that hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsparq
from fedsparq import Buffers, Layout, Payload
from fedsparq.errors import OptionError
from fedsparq.options import parse_bytes
from made_updates import fill, fills, layouts

LENET_LIKE = Layout.of({"conv": (16, 6, 5, 5), "conv.b": (16,), "fc": (120, 400), "fc.b": (120,), "out": (10, 120)})


def trained_update(seed):
    """Heavy-tailed, with active and quiet rows and columns, as trained layers are."""
    rng = np.random.default_rng(seed)
    update = np.zeros(LENET_LIKE.size, np.float32)
    for tensor in LENET_LIKE.parameters:
        rows = tensor.shape[0]
        scales = np.outer(rng.lognormal(size=rows), rng.lognormal(size=tensor.size // rows)).ravel()
        update[tensor.span] = 1e-3 * scales * rng.laplace(size=tensor.size)
    return update


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("budget", ["300 B", "1 kB", "2400", "7 kB", "20 kB", "40 kB"])
def test_never_exceeded_and_used_to_95_percent(budget, rounding):
    method = fedsparq.method("fedsparq-adaptive", budget=budget, rounding=rounding)
    state = method.init(LENET_LIKE)
    for r in range(6):
        payload, state = method.compress(trained_update(r), state, np.random.default_rng(r))
        size = len(fedsparq.encode(payload))
        assert 0.95 * parse_bytes(budget) <= size <= parse_bytes(budget), r


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@given(layout=layouts(), kinds=fills(), seed=st.integers(0, 2**32), budget=st.integers(200, 30_000))
@settings(max_examples=60)
def test_never_exceeded_whatever_the_update(rounding, layout, kinds, seed, budget):
    method = fedsparq.method("fedsparq-adaptive", budget=str(budget), rounding=rounding)
    state = method.init(layout)
    for r in range(3):
        payload, state = method.compress(fill(layout, kinds, seed + r), state, np.random.default_rng(r))
        assert len(fedsparq.encode(payload)) <= budget


def test_buffers_and_counters_count():
    layout = Layout.of({"w": (200, 100), "bn.running_mean": np.zeros(100, np.float32), "n": np.zeros(1, np.int64)})
    method, rng = fedsparq.method("fedsparq-adaptive", budget="2 kB"), np.random.default_rng(0)
    update = rng.laplace(size=layout.size).astype(np.float32)
    payload, _ = method.compress(update, method.init(layout), rng)
    buffers = Buffers(rng.normal(size=100).astype(np.float32), np.array([7]))
    message = fedsparq.encode(Payload(layout, payload.selection, payload.values, buffers))
    assert 1900 <= len(message) <= 2000


def test_a_small_update_is_sent_whole():
    layout = Layout.of({"w": (50, 40)})
    update = np.zeros(layout.size, np.float32)
    update[[3, 77, 1500]] = [1, -2, 1]
    method = fedsparq.method("fedsparq-adaptive", rounding="nearest", budget="5 kB")
    payload, state = method.compress(update, method.init(layout), np.random.default_rng(0))
    np.testing.assert_array_equal(payload.dense(), update)
    assert not state.residual.any()


def test_a_budget_below_an_empty_message():
    method = fedsparq.method("fedsparq-adaptive", budget="20 B")
    with pytest.raises(OptionError, match="too small for this model; an empty message takes 33"):
        method.init(LENET_LIKE)
