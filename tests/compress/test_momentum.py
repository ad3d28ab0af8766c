"""Deep gradient compression against its paper's algorithm, straight in numpy."""

import numpy as np
import pytest

import fedsparq
from fedsparq import Layout
from fedsparq.compress.sparsify import WarmUp
from fedsparq.errors import OptionError

LAYOUT = Layout.of({"w": (40, 25), "b": (40,)})


@pytest.mark.parametrize("clip_norm", [0.0, 0.2])
def test_dgc_is_its_papers(clip_norm):
    options = {"fraction": 0.02, "momentum": 0.7, "clip_norm": clip_norm, "warmup": 3, "start": 0.25}
    method, rng = fedsparq.method("dgc", **options), np.random.default_rng(1)
    state = method.init(LAYOUT)
    u, v = np.zeros(LAYOUT.size), np.zeros(LAYOUT.size, np.float32)
    for r, fraction in enumerate([0.25, 0.25 * 0.08 ** (1 / 3), 0.25 * 0.08 ** (2 / 3), 0.02, 0.02]):
        g = rng.normal(scale=1e-2, size=LAYOUT.size).astype(np.float32)
        payload, state = method.compress(g, state, rng)
        norm = np.linalg.norm(g.astype(np.float64))
        u = 0.7 * u + g * (min(1.0, clip_norm / norm) if clip_norm else 1.0)
        v = v + u.astype(np.float32)
        sent = np.zeros(LAYOUT.size, bool)
        for tensor in LAYOUT.parameters:
            count = max(1, round(fraction * tensor.size))
            threshold = np.sort(np.abs(v[tensor.span]))[-count]
            sent[tensor.span] = np.abs(v[tensor.span]) >= threshold
        np.testing.assert_allclose(payload.dense(), np.where(sent, v, 0), rtol=1e-6, atol=1e-8, err_msg=f"round {r}")
        u[sent], v[sent] = 0, 0
        np.testing.assert_allclose(state.feedback["velocity"], u, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(state.residual, v, rtol=1e-6, atol=1e-8)


def test_without_momentum_and_warm_up_it_is_the_largest_with_error_feedback():
    plain = fedsparq.method("dgc", fraction=0.05, momentum=0.0, warmup=0)
    rng = np.random.default_rng(2)
    state, residual = plain.init(LAYOUT), np.zeros(LAYOUT.size, np.float32)
    for _ in range(4):
        update = rng.normal(size=LAYOUT.size).astype(np.float32)
        payload, state = plain.compress(update, state, rng)
        residual = residual + update - payload.dense()
        np.testing.assert_array_equal(state.residual, residual)


def test_the_papers_warm_up():
    fractions = [WarmUp(0.001, 0.25, 4).at(r) for r in range(6)]
    np.testing.assert_allclose(fractions, [0.25, 0.0625, 0.015625, 0.004, 0.001, 0.001], rtol=0.02)


@pytest.mark.parametrize("options", [{"momentum": 1.0}, {"clip_norm": -1.0}, {"warmup": -1}, {"start": 0.0}])
def test_impossible_options(options):
    with pytest.raises(OptionError, match="is not possible"):
        fedsparq.method("dgc", **options)
