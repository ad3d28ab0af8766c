"""QSGD by buckets and one bit after a random rotation: closed forms, and that their mean is the update."""

import numpy as np
import pytest

import fedsparq
from fedsparq import Layout
from fedsparq.errors import OptionError

LAYOUT = Layout.of({"w": (30, 41), "b": (37,)})
C = np.random.default_rng(5).laplace(size=LAYOUT.size).astype(np.float32)


def decoded(name, seed, **options):
    method = fedsparq.method(name, **options)
    payload, _ = method.compress(C, method.init(LAYOUT), np.random.default_rng(seed))
    return payload.dense()


@pytest.mark.parametrize("norm", ["l2", "max"])
def test_qsgd_rounds_to_one_of_the_two_levels_beside(norm):
    dense = decoded("qsgd", 0, levels=4, bucket=64, norm=norm)
    for tensor in LAYOUT.parameters:
        for start in range(tensor.offset, tensor.offset + tensor.size, 64):
            here = slice(start, min(start + 64, tensor.offset + tensor.size))
            c = C[here].astype(np.float64)
            step = (np.linalg.norm(c) if norm == "l2" else np.abs(c).max()) / 4
            level = np.abs(dense[here]) / step
            np.testing.assert_allclose(level, np.rint(level), atol=1e-4)
            assert (np.abs(np.rint(level) - np.abs(c) / step) < 1 + 1e-6).all()
            assert (np.sign(dense[here])[dense[here] != 0] == np.sign(c)[dense[here] != 0]).all()


@pytest.mark.parametrize(("name", "options"), [("qsgd", {"levels": 2, "bucket": 128}), ("eden", {})])
def test_the_mean_is_the_update(name, options):
    draws = np.array([decoded(name, seed, **options) for seed in range(600)])
    error = draws.mean(0) - C
    spread = draws.std(0) / np.sqrt(len(draws))
    assert np.sqrt(np.mean(error**2)) < 1.2 * np.sqrt(np.mean(spread**2))  # 1 without a bias


def test_qsgds_variance_is_that_of_stochastic_rounding():
    draws = np.array([decoded("qsgd", seed, levels=3, bucket=4096) for seed in range(800)])
    for tensor in LAYOUT.parameters:
        c = np.abs(C[tensor.span].astype(np.float64))
        step = np.linalg.norm(c) / 3
        chance = c / step - np.floor(c / step)
        np.testing.assert_allclose(
            draws[:, tensor.span].var(0).sum(), (step**2 * chance * (1 - chance)).sum(), rtol=0.03
        )


def test_eden_rebuilds_the_length_along_the_update():
    """S = |x|^2 / |Rx|_1 makes <decoded, x> = |x|^2 in every block."""
    layout = Layout.of({"w": (1024,)})
    x = np.random.default_rng(2).normal(size=1024).astype(np.float32)
    method = fedsparq.method("eden")
    payload, _ = method.compress(x, method.init(layout), np.random.default_rng(0))
    np.testing.assert_allclose(payload.dense() @ x, x @ x, rtol=1e-5)
    # For a normal vector the squared error is pi/2 - 1 of its energy
    error = np.sum((payload.dense() - x) ** 2) / (x @ x)
    assert abs(error - (np.pi / 2 - 1)) < 0.06
    assert len(fedsparq.encode(payload)) == 21 + 1 + 8 + 4 + 1 + 1024 // 8


@pytest.mark.parametrize("options", [{"levels": 0}, {"levels": 40_000}, {"bucket": 0}])
def test_impossible_options(options):
    with pytest.raises(OptionError, match="is not possible"):
        fedsparq.method("qsgd", **options)
