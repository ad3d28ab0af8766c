"""STC and AdaComp against their papers' algorithms, straight in numpy."""

import numpy as np
import pytest

import fedsparq
from fedsparq import Layout
from fedsparq.errors import OptionError

LAYOUT = Layout.of({"conv": (4, 3, 5, 5), "fc": (30, 41), "bias": (30,)})


def updates(rounds, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.laplace(scale=1e-2, size=LAYOUT.size).astype(np.float32) for _ in range(rounds)]


def stc(values, fraction):
    """Algorithm 1 of Sattler et al.: top k by magnitude, then sign times the mean of the kept magnitudes."""
    k = max(round(fraction * values.size), 1)
    threshold = np.sort(np.abs(values))[-k]
    mask = np.abs(values) >= threshold
    mean = np.abs(values[mask].astype(np.float64)).sum() / k
    return np.where(mask, np.float32(mean) * np.sign(values), 0).astype(np.float32)


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("fraction", [0.01, 0.1])
def test_stc_is_its_papers(scope, fraction):
    method = fedsparq.method("stc", fraction=fraction, scope=scope)
    state, residual = method.init(LAYOUT), np.zeros(LAYOUT.size, np.float32)
    for r, update in enumerate(updates(6)):
        payload, state = method.compress(update, state, np.random.default_rng(r))
        c = update + residual
        spans = [t.span for t in LAYOUT.parameters] if scope == "layer" else [slice(None)]
        expected = np.concatenate([stc(c[span], fraction) for span in spans])
        residual = c - expected
        np.testing.assert_array_equal(payload.dense(), expected)
        np.testing.assert_array_equal(state.residual, residual)


def adacomp(residual, update, bin_size):
    """Algorithm 2 of Chen et al.: G = residue + dW, H = G + dW; in each bin send where |H| >= max |G|."""
    g = residual + update
    h = g + update
    sent, maxima = np.zeros_like(g), []
    for start in range(0, g.size, bin_size):
        maxima.append(np.abs(g[start : start + bin_size]).max())
    scale = np.float32(np.mean(np.array(maxima, np.float64)))
    for start, most in zip(range(0, g.size, bin_size), maxima, strict=True):
        for i in range(start, min(start + bin_size, g.size)):
            if abs(h[i]) >= most:
                sent[i] = np.sign(g[i]) * scale
    return sent


def test_adacomp_is_its_papers():
    method = fedsparq.method("adacomp", conv_bin=20, bin=100)
    state, residual = method.init(LAYOUT), np.zeros(LAYOUT.size, np.float32)
    for r, update in enumerate(updates(6)):
        payload, state = method.compress(update, state, np.random.default_rng(r))
        expected = np.concatenate(
            [adacomp(residual[t.span], update[t.span], 20 if t.name == "conv" else 100) for t in LAYOUT.parameters]
        )
        np.testing.assert_array_equal(payload.dense(), expected)
        residual = residual + update - expected


def test_adacomp_sends_more_when_updates_repeat():
    """A coordinate that keeps moving the same way passes the soft threshold sooner than noise does."""
    layout = Layout.of({"w": (5000,)})
    method, rng = fedsparq.method("adacomp"), np.random.default_rng(0)
    state = method.init(layout)
    kept = []
    for scale in (0.0, 1.0):
        state = method.init(layout)
        still = rng.normal(size=layout.size).astype(np.float32)
        _, state = method.compress(still, state, rng)
        payload, _ = method.compress(np.float32(scale) * still, state, rng)
        kept.append(payload.kept)
    assert kept[1] > 2 * kept[0] > 0


@pytest.mark.parametrize(("name", "options"), [("stc", {"fraction": 0.0}), ("adacomp", {"bin": 0})])
def test_impossible_options(name, options):
    with pytest.raises(OptionError, match="is not possible"):
        fedsparq.method(name, **options)
