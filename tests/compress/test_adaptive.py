"""The adaptive method with full error feedback: the best choice there is, and one multiplier for all layers."""

import numpy as np
import pytest

import fedsparq
from fedsparq import Layout
from fedsparq.compress.adaptive import Curves, measure
from fedsparq.errors import OptionError
from fedsparq.payload import Codebook, UniformLevels

LAYOUT = Layout.of({"a": (100, 80), "b": (60, 50), "c": (2000,)})


def laplace(seed, scales=(1.0, 0.3, 3.0)):
    rng = np.random.default_rng(seed)
    return np.concatenate(
        [s * rng.laplace(size=t.size) for s, t in zip(scales, LAYOUT.parameters, strict=True)]
    ).astype(np.float32)


def curves(update):
    return Curves(measure(update, LAYOUT))


def entropy(counts):
    shares = counts[counts > 0] / counts.sum()
    return -counts.sum() * (shares * np.log2(shares)).sum()


def one_level(magnitudes, kept):
    """Squared error taken away and ideal bits, when the largest `kept` are sent as signs with their mean."""
    largest = np.sort(magnitudes)[::-1][:kept]
    return largest.sum() ** 2 / kept, entropy(np.array([kept, magnitudes.size - kept])) + kept


def test_the_bits_of_a_plan_are_those_of_its_entropy():
    update = laplace(0)
    plan = curves(update).plan(5000.0, 0.0)
    bits = 0.0
    for tensor, edges in zip(LAYOUT.parameters, plan.edges, strict=True):
        levels = np.searchsorted(edges, np.abs(update[tensor.span]), side="right")
        counts = np.bincount(levels, minlength=edges.size + 1)
        bits += 8 + 16 * edges.size + entropy(counts) + counts[1:].sum()
    assert plan.bits == pytest.approx(bits, rel=1e-6)
    assert 4800 <= plan.bits <= 5000


@pytest.mark.parametrize("bits", [1500.0, 4000.0, 12_000.0])
def test_no_sharing_of_the_bits_among_one_level_layers_is_better(bits):
    """Every other split of the same bits among the layers, by brute force, leaves at least as large an error."""
    update = laplace(1)
    plan = curves(update).plan(bits, 0.0)
    gained = 0.0
    for tensor, edges in zip(LAYOUT.parameters, plan.edges, strict=True):
        magnitudes = np.abs(update[tensor.span].astype(np.float64))
        levels = np.searchsorted(edges, magnitudes, side="right")
        for level in range(1, edges.size + 1):
            inside = magnitudes[levels == level]
            gained += inside.sum() ** 2 / max(inside.size, 1)
    choices = []
    for tensor in LAYOUT.parameters:
        magnitudes = np.abs(update[tensor.span].astype(np.float64))
        counts = np.unique(np.geomspace(1, tensor.size / 2, 60).astype(int))
        choices.append([(0.0, 0.0), *(one_level(magnitudes, int(k)) for k in counts)])
    best = max(
        a[0] + b[0] + c[0]
        for a in choices[0]
        for b in choices[1]
        for c in choices[2]
        if a[1] + b[1] + c[1] <= bits - 24 - 48
    )
    assert gained > 0.995 * best


def test_layers_of_small_values_are_left_out_and_those_of_large_get_more_levels():
    update = laplace(2, scales=(1.0, 0.01, 20.0))
    plan = curves(update).plan(4000.0, 0.0)
    assert plan.edges[1].size == 0
    assert plan.edges[2].size > max(plan.edges[0].size, 1)


def test_twice_the_update_at_the_same_bits_is_the_same_choice_at_four_times_the_multiplier():
    one, two = curves(laplace(3)).plan(6000.0, 0.0), curves(2 * laplace(3)).plan(6000.0, 0.0)
    assert two.lagrange == pytest.approx(4 * one.lagrange, rel=0.01)
    for a, b in zip(one.edges, two.edges, strict=True):
        np.testing.assert_allclose(2 * a, b, rtol=0.02)


def test_levels_are_rebuilt_at_their_means_to_two_bytes():
    update = laplace(4)
    method = fedsparq.method("fedsparq-adaptive", rounding="nearest", bits=0.5)
    payload, state = method.compress(update, method.init(LAYOUT), np.random.default_rng(0))
    for layer in payload.layers():
        assert isinstance(layer.values, Codebook)
        for level, magnitude in enumerate(layer.values.table, 1):
            inside = np.abs(update[layer.indices[np.abs(layer.values.levels) == level]].astype(np.float64))
            assert magnitude == pytest.approx(inside.mean(), rel=2**-8)
            assert magnitude.view(np.uint32) & 0xFFFF == 0
    np.testing.assert_array_equal(state.residual, update - payload.dense())


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("bits", [0.05, 0.3, 1.0, 4.0])
def test_the_default_budget_is_bits_a_parameter(bits, rounding):
    method = fedsparq.method("fedsparq-adaptive", bits=bits, rounding=rounding)
    state = method.init(LAYOUT)
    for r in range(9):
        payload, state = method.compress(laplace(r), state, np.random.default_rng(r))
        measured = r in (0, 1, 2, 4, 8)
        least, most = (0.95, 1.0) if measured else (0.8, 1.2)
        assert least <= len(fedsparq.encode(payload)) / (bits * LAYOUT.size / 8) <= most


def test_at_the_same_bytes_less_is_left_than_by_stc_or_uniform():
    update = laplace(6)
    left = {}
    for name, options in (("stc", {"fraction": 0.03}), ("uniform", {"step": 3.0})):
        method = fedsparq.method(name, **options)
        payload, _ = method.compress(update, method.init(LAYOUT), np.random.default_rng(0))
        size = len(fedsparq.encode(payload))
        ours = fedsparq.method("fedsparq-adaptive", rounding="nearest", budget=str(size))
        mine, _ = ours.compress(update, ours.init(LAYOUT), np.random.default_rng(0))
        left[name] = np.sum((update - mine.dense()) ** 2) / np.sum((update - payload.dense()) ** 2)
    assert left["stc"] < 0.97
    assert left["uniform"] < 1.0


def test_fine_steps_where_there_are_bytes_for_them():
    method = fedsparq.method("fedsparq-adaptive", rounding="nearest", bits=10.0)
    update = laplace(7)
    payload, _ = method.compress(update, method.init(LAYOUT), np.random.default_rng(0))
    assert any(isinstance(values, UniformLevels) for values in payload.values)
    assert np.sum((update - payload.dense()) ** 2) < 1e-4 * np.sum(update**2)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_large_layer_is_judged_by_a_sample(rounding):
    layout = Layout.of({"big": (3_000_000,), "small": (1000,)})
    update = np.random.default_rng(0).laplace(size=layout.size).astype(np.float32)
    method = fedsparq.method("fedsparq-adaptive", rounding=rounding)
    payload, _ = method.compress(update, method.init(layout), np.random.default_rng(0))
    assert 0.9 <= len(fedsparq.encode(payload)) / (0.2 * layout.size / 8) <= 1.0


@pytest.mark.parametrize(
    "options", [{"bits": 0.0}, {"bits": 33.0}, {"beta": 1.0}, {"budget": "a lot"}, {"deferred": 1.0}]
)
def test_impossible_options(options):
    with pytest.raises(OptionError):
        fedsparq.method("fedsparq-adaptive", **options)
