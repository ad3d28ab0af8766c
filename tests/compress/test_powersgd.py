"""PowerSGD against its algorithm in straight numpy, and what its factors cost."""

import numpy as np

import fedsparq
from fedsparq import Layout

LAYOUT = Layout.of({"w": (30, 5, 4), "b": (30,)})


def test_powersgd_is_its_papers():
    method, rng = fedsparq.method("powersgd", rank=2), np.random.default_rng(0)
    state = method.init(LAYOUT)
    q, error = state.compressor["right0"].copy(), np.zeros((30, 20))
    for _ in range(5):
        update = rng.normal(size=LAYOUT.size).astype(np.float32)
        payload, state = method.compress(update, state, rng)
        matrix = update[:600].reshape(30, 20) + error
        p = matrix @ q
        for column in range(2):  # Gram-Schmidt
            for other in range(column):
                p[:, column] -= (p[:, column] @ p[:, other]) * p[:, other]
            p[:, column] /= np.linalg.norm(p[:, column])
        q = matrix.T @ p
        sent = p @ q.T
        np.testing.assert_allclose(payload.dense()[:600].reshape(30, 20), sent, atol=2e-5)
        np.testing.assert_array_equal(payload.dense()[600:], update[600:])
        error = matrix - sent
        np.testing.assert_allclose(state.residual[:600].reshape(30, 20), error, atol=2e-5)
        q = q / np.linalg.norm(q, axis=0)  # its length does not matter: P is orthonormal


def test_a_matrix_of_low_rank_arrives_whole():
    rng = np.random.default_rng(1)
    matrix = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 20))
    update = np.concatenate([matrix.reshape(-1), np.zeros(30)]).astype(np.float32)
    method = fedsparq.method("powersgd", rank=3)
    payload, _ = method.compress(update, method.init(LAYOUT), rng)
    np.testing.assert_allclose(payload.dense(), update, atol=1e-5)


def test_rank_1_of_the_first_mnist_layer_costs_0_29_bits_a_parameter():
    layout = Layout.of({"w": (128, 784)})
    method = fedsparq.method("powersgd", rank=1)
    update = np.random.default_rng(2).normal(size=layout.size).astype(np.float32)
    payload, _ = method.compress(update, method.init(layout), np.random.default_rng(0))
    size = len(fedsparq.encode(payload))
    assert 4 * (128 + 784) <= size <= 4 * (128 + 784) + 30
    assert round(8 * size / layout.size, 2) == 0.29


def test_a_round_without_news_does_not_end_it():
    method, rng = fedsparq.method("powersgd", rank=2), np.random.default_rng(3)
    _, state = method.compress(np.zeros(LAYOUT.size, np.float32), method.init(LAYOUT), rng)
    payload, _ = method.compress(np.ones(LAYOUT.size, np.float32), state, rng)
    np.testing.assert_allclose(payload.dense(), 1, atol=1e-5)
