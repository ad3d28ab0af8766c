"""The random rotation against its matrix, and the blocks of a layer."""

import numpy as np
import pytest

from fedsparq.payload.kernels import random_bits
from fedsparq.payload.rotated_signs import flip_signs, rotate, rotate_back, rotated_bytes, rotation_blocks


def matrix(n):
    return np.ones((1, 1)) if n == 1 else np.kron(np.array([[1, 1], [1, -1]]), matrix(n // 2))


def test_the_rotation_is_signs_then_hadamard():
    x = np.random.default_rng(0).normal(size=256).astype(np.float32)
    signs = np.ones(256, np.float32)
    flip_signs(signs, random_bits(np.uint64(9), 3))
    assert 90 < (signs < 0).sum() < 166
    rotated = x.copy()
    rotate(rotated, np.uint64(9), 3)
    np.testing.assert_allclose(rotated, matrix(256) @ (signs * x) / 16, atol=1e-5)
    rotate_back(rotated, np.uint64(9), 3)
    np.testing.assert_allclose(rotated, x, atol=1e-5)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 63, 64, 100, 4097, 40_000, 100_352])
def test_blocks_cover_a_layer(size):
    blocks = rotation_blocks(size)
    assert sum(taken for _, taken, _ in blocks) == size
    assert [start for start, _, _ in blocks] == list(np.cumsum([0, *(taken for _, taken, _ in blocks)])[:-1])
    assert all(padded >= taken and padded & (padded - 1) == 0 and padded >= 8 for _, taken, padded in blocks)
    assert rotated_bytes(size) <= size / 8 + 8
