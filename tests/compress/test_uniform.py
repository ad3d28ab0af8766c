"""Equal steps behind a dead zone, and the two threshold methods that are one setting of others."""

import numpy as np
import pytest

import fedsparq
from fedsparq import Layout
from fedsparq.errors import OptionError

LAYOUT = Layout.of({"w": (60, 50), "b": (50,)})


def update(seed):
    values = np.random.default_rng(seed).laplace(size=LAYOUT.size)
    values[LAYOUT.parameters[1].span] *= 10
    return values.astype(np.float32)


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("dead_zone", [0.5, 0.6, 1.0])
def test_levels_by_their_definition(scope, dead_zone):
    method = fedsparq.method("uniform", step=1.5, dead_zone=dead_zone, scope=scope)
    c = update(1)
    payload, state = method.compress(c, method.init(LAYOUT), np.random.default_rng(0))
    expected = np.zeros_like(c)
    for tensor in LAYOUT.parameters:
        over = c if scope == "global" else c[tensor.span]
        step = np.float32(1.5 * np.sqrt(np.mean(over.astype(np.float64) ** 2)))
        ratio = np.abs(c[tensor.span].astype(np.float64)) / float(step)
        level = np.where(ratio < dead_zone, 0, 1 + np.floor(ratio - dead_zone))
        expected[tensor.span] = np.sign(c[tensor.span]) * level * step
    np.testing.assert_allclose(payload.dense(), expected, rtol=1e-5)
    np.testing.assert_array_equal(state.residual, c - payload.dense())


def test_plain_rounding_errs_by_half_a_step_at_most():
    method = fedsparq.method("uniform", step=0.25, dead_zone=0.5)
    c = update(2)
    payload, _ = method.compress(c, method.init(LAYOUT), np.random.default_rng(0))
    step = 0.25 * np.sqrt(np.mean(c.astype(np.float64) ** 2))
    assert np.abs(c - payload.dense()).max() <= step / 2 * 1.0001


def test_mean_threshold_keeps_what_reaches_the_layers_mean():
    method = fedsparq.method("mean-threshold", multiplier=1.5)
    state, residual = method.init(LAYOUT), np.zeros(LAYOUT.size, np.float32)
    for r in range(3):
        payload, state = method.compress(update(r), state, np.random.default_rng(r))
        c = update(r) + residual
        for tensor in LAYOUT.parameters:
            layer = c[tensor.span]
            kept = np.abs(layer) >= np.float32(1.5 * np.abs(layer.astype(np.float64)).mean())
            expected = np.where(kept, layer.astype(np.float16), 0).astype(np.float32)
            np.testing.assert_array_equal(payload.dense()[tensor.span], expected)
        residual = c - payload.dense()


@pytest.mark.parametrize("share", [50.0, 90.0, 99.0])
def test_percentile_keeps_what_lies_above_it(share):
    method = fedsparq.method("percentile", percentile=share)
    c = update(3)
    payload, _ = method.compress(c, method.init(LAYOUT), np.random.default_rng(0))
    for tensor in LAYOUT.parameters:
        layer = c[tensor.span]
        kept = np.abs(layer) > np.percentile(np.abs(layer), share, method="lower")
        sent = payload.dense()[tensor.span] != 0
        # numpy's percentile is an element; ours may keep that one element too
        assert sent[kept].all()
        assert sent.sum() - kept.sum() in (0, 1)


@pytest.mark.parametrize(
    ("name", "options"),
    [("uniform", {"step": 0.0}), ("uniform", {"dead_zone": 0.4}), ("percentile", {"percentile": 100.0})],
)
def test_impossible_options(name, options):
    with pytest.raises(OptionError, match="is not possible"):
        fedsparq.method(name, **options)
