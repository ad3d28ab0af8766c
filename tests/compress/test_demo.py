"""DeMo against scipy's cosine transform and its algorithm; DRIVE against the formulas of its two scales."""

import numpy as np
import pytest
from scipy.fft import dctn, idctn

import fedsparq
from fedsparq import Layout, Method, Step
from fedsparq.methods.drive import Drive
from fedsparq.payload.cosine_blocks import Blocks

LAYOUT = Layout.of({"w": (128, 98), "b": (10,)})


def extracted(matrix, sides, kept):
    """The largest coefficients of each block, and the block that they make."""
    out = np.zeros_like(matrix)
    for i in range(0, matrix.shape[0], sides[0]):
        for j in range(0, matrix.shape[1], sides[1]):
            block = (slice(i, i + sides[0]), slice(j, j + sides[1]))
            found = dctn(matrix[block], norm="ortho")
            kept_here = np.sort(np.abs(found).ravel())[-min(kept, found.size)]
            out[block] = idctn(np.where(np.abs(found) >= kept_here, found, 0), norm="ortho")
    return out


def test_demo_is_its_papers():
    method, rng = fedsparq.method("demo", kept=8, momentum=0.9, lr=0.01), np.random.default_rng(0)
    assert Blocks.of(LAYOUT.parameters[0]) == Blocks(128, 98, 64, 49)
    state, m = method.init(LAYOUT), np.zeros(LAYOUT.size)
    for _ in range(4):
        update = rng.normal(size=LAYOUT.size).astype(np.float32)
        payload, state = method.compress(update, state, rng)
        m = 0.9 * m + update
        sent = np.concatenate(
            [
                extracted(m[: 128 * 98].reshape(128, 98), (64, 49), 8).ravel(),
                extracted(m[128 * 98 :].reshape(1, 10), (1, 10), 8).ravel(),
            ]
        )
        np.testing.assert_allclose(payload.dense(), sent, atol=1e-5)
        m -= sent
        np.testing.assert_allclose(state.residual, m, atol=1e-5)
    model = np.ones(3, np.float32)
    stepped, _ = method.optimizer.step(model, np.array([5, 0, -0.1], np.float32), {})
    np.testing.assert_allclose(stepped, [1.01, 1, 0.99])


def test_a_lost_reply_goes_back_into_the_momentum():
    method, rng = fedsparq.method("demo"), np.random.default_rng(1)
    update = rng.normal(size=LAYOUT.size).astype(np.float32)
    payload, state = method.compress(update, method.init(LAYOUT), rng)
    np.testing.assert_allclose(method.acknowledge(state, payload, 0.0).residual, update, atol=1e-5)
    assert method.acknowledge(state, payload, 1.0).residual is state.residual


def test_what_32_of_4096_coefficients_cost():
    layout = Layout.of({"w": (640, 640)})
    method = fedsparq.method("demo")
    update = np.random.default_rng(2).normal(size=layout.size).astype(np.float32)
    payload, _ = method.compress(update, method.init(layout), np.random.default_rng(0))
    bits = 8 * len(fedsparq.encode(payload)) / layout.size
    assert 32 * (32 + 7) / 4096 < bits < 32 * (32 + 11) / 4096


def test_unbiased_drive_is_eden_at_one_bit():
    update = np.random.default_rng(3).normal(size=LAYOUT.size).astype(np.float32)
    blobs = []
    for name in ("drive", "eden"):
        method = fedsparq.method(name)
        blobs.append(fedsparq.encode(method.compress(update, method.init(LAYOUT), np.random.default_rng(0))[0]))
    assert blobs[0] == blobs[1]


@pytest.mark.parametrize(("scale", "error"), [("unbiased", np.pi / 2 - 1), ("least-error", 1 - 2 / np.pi)])
def test_drives_errors_are_those_of_its_paper(scale, error):
    """Of a rotated, so nearly normal vector: |Rx|_1^2 / d = 2 / pi |x|^2."""
    layout = Layout.of({"w": (1 << 15,)})
    update = np.random.default_rng(4).laplace(size=layout.size).astype(np.float32)
    method = Method(Drive(scale), optimizer=Step())
    decoded = method.compress(update, method.init(layout), np.random.default_rng(5))[0].dense()
    energy = float(update.astype(float) @ update)
    assert float(((decoded - update).astype(float) ** 2).sum()) / energy == pytest.approx(error, rel=0.03)
    along = float(decoded.astype(float) @ update) / energy
    assert along == pytest.approx(1.0 if scale == "unbiased" else 2 / np.pi, rel=0.01)
