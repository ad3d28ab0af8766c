"""Which coordinates are kept: against a straight reading of SPEC.md, and against sorting."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Reference

import fedsparq
from fedsparq import Layout
from fedsparq.compress.sparsify import kept_count
from fedsparq.errors import OptionError
from made_updates import fill, fills, layouts

OPTIONS = [
    {},
    {"beta": 0.0},
    {"beta": 0.5},
    {"multiplier": 0.0},
    {"multiplier": 2.5},
    {"scope": "global"},
    {"start": "zero"},
    {"residual": "kept-only"},
    {"residual": "off"},
    {"scope": "global", "start": "zero", "residual": "kept-only", "multiplier": 1.5, "beta": 0.99},
    {"rounding": "stochastic"},
    {"rounding": "stochastic", "scope": "global", "start": "zero", "residual": "off"},
]


def reference_of(layout, options):
    names = {"residual": "rule", "beta": "beta", "multiplier": "multiplier", "scope": "scope", "start": "start"}
    chosen = {names[key]: value for key, value in options.items() if key in names}
    return Reference([t.size for t in layout.parameters], **chosen)


@np.errstate(over="ignore")
def is_a_neighbour(value, half):
    """Whether a float16 is the one next below or above a float32."""
    nearest = np.clip(value, -65504, 65504).astype(np.float16)
    low = np.where(nearest.astype(np.float32) <= value, nearest, np.nextafter(nearest, np.float16(-np.inf)))
    high = np.where(low.astype(np.float32) == value, low, np.nextafter(low, np.float16(np.inf)))
    return (half == np.maximum(low, np.float16(-65504))) | (half == np.minimum(high, np.float16(65504)))


def agree(layout, options, deltas):
    method = fedsparq.method("fedsparq", **options)
    state, reference = method.init(layout), reference_of(layout, options)
    for r, delta in enumerate(deltas):
        payload, state = method.compress(delta, state, np.random.default_rng(r))
        reference.step(delta)
        np.testing.assert_array_equal(payload.indices, reference.kept)
        bits = np.concatenate([np.empty(0, np.uint16), *(v.bits for v in payload.values)])
        if options.get("rounding") == "stochastic":
            assert is_a_neighbour(reference.compensated[reference.kept], bits.view(np.float16)).all()
            reference.send(bits.view(np.float16))
        np.testing.assert_array_equal(bits, reference.sent.view(np.uint16))
        np.testing.assert_allclose(state.compressor["threshold"], reference.tau, rtol=1e-12)
        if state.residual is None:
            assert options["residual"] == "off"
        else:
            np.testing.assert_array_equal(state.residual.view(np.uint32), reference.residual.view(np.uint32))
        assert state.compressor["rounds"] == [reference.t]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_fedsparq_is_what_the_specification_says(options):
    layout = Layout.of({"w1": (300, 40), "b1": (300,), "none": (0,), "w2": (10, 300), "one": (1,)})
    rng = np.random.default_rng(7)
    scales = np.repeat([1e-3, 1e-2, 3e-7, 4.0], [t.size for t in layout.parameters if t.size])
    agree(layout, options, [(rng.laplace(size=layout.size) * scales).astype(np.float32) for _ in range(40)])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@given(layout=layouts(), kinds=fills(), seed=st.integers(0, 2**32))
@settings(max_examples=15)
def test_on_nasty_layers_too(options, layout, kinds, seed):
    agree(layout, options, [fill(layout, kinds, seed + r) for r in range(4)])


def test_round_one_uses_the_plain_mean_and_zero_start_a_tenth_of_it():
    layout = Layout.of({"a": (4,)})
    delta = np.array([0.5, 1.0, 1.5, 9.0], np.float32)  # mean 3
    for start, kept in (("debiased", [3]), ("zero", [0, 1, 2, 3])):
        method = fedsparq.method("fedsparq", start=start)
        payload, state = method.compress(delta, method.init(layout), np.random.default_rng(0))
        assert payload.indices.tolist() == kept
        np.testing.assert_allclose(state.compressor["threshold"], [0.3])


def test_a_coordinate_at_the_threshold_is_kept():
    layout = Layout.of({"a": (5,)})
    method = fedsparq.method("fedsparq")
    payload, _ = method.compress(np.full(5, -0.3, np.float32), method.init(layout), np.random.default_rng(0))
    assert payload.kept == 5


def test_an_endless_threshold_keeps_nothing():
    layout = Layout.of({"a": (5,)})
    method = fedsparq.method("fedsparq", multiplier=1e300)
    payload, state = method.compress(np.full(5, 3.4e38, np.float32), method.init(layout), np.random.default_rng(0))
    assert payload.kept == 0
    assert (state.residual == np.float32(3.4e38)).all()


@given(layout=layouts(), kinds=fills(), seed=st.integers(0, 2**32), fraction=st.floats(1e-3, 1))
@settings(max_examples=60)
def test_top_keeps_the_largest_and_among_equals_the_first(layout, kinds, seed, fraction):
    method = fedsparq.method("top-10", fraction=fraction)
    delta = fill(layout, kinds, seed)
    payload, _ = method.compress(delta, method.init(layout), np.random.default_rng(0))
    order = np.lexsort((np.arange(delta.size), -np.abs(delta)))
    expected = np.sort(order[: kept_count(fraction, layout.size)])
    np.testing.assert_array_equal(payload.indices, expected)
    np.testing.assert_array_equal(payload.dense()[expected], delta[expected])


def test_random_keeps_each_coordinate_as_often_as_any_other():
    layout = Layout.of({"a": (40,), "b": (60,)})
    method, rng = fedsparq.method("random-10", fraction=0.3), np.random.default_rng(5)
    rounds = 20_000
    hits, pairs = np.zeros(100), 0
    for _ in range(rounds):
        payload, _ = method.compress(np.ones(100, np.float32), method.init(layout), rng)
        assert payload.kept == 30
        hits[payload.indices] += 1
        pairs += int(payload.indices[:2].tolist() == [0, 1])
    z = (hits - 0.3 * rounds) / np.sqrt(rounds * 0.3 * 0.7)
    assert np.abs(z).max() < 4.5
    together = 0.3 * 29 / 99  # without replacement
    assert abs(pairs - together * rounds) < 4.5 * np.sqrt(rounds * together)


def test_a_fraction_is_rounded_but_never_nothing():
    assert [kept_count(0.1, n) for n in (0, 1, 4, 14, 16, 1000)] == [0, 1, 1, 1, 2, 100]
    assert kept_count(1.0, 7) == 7


@pytest.mark.parametrize("option", [{"beta": 1.0}, {"beta": -0.1}, {"multiplier": -1.0}, {"multiplier": float("nan")}])
def test_impossible_thresholds_are_refused(option):
    with pytest.raises(OptionError, match=next(iter(option))):
        fedsparq.method("fedsparq", **option)


@pytest.mark.parametrize("name", ["random-10", "top-10"])
@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.1, float("nan")])
def test_impossible_fractions_are_refused(name, fraction):
    with pytest.raises(OptionError, match="fraction"):
        fedsparq.method(name, fraction=fraction)
