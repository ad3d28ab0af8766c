"""Clipped gradients of single examples, with noise, against a straight loop of torch's own."""

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from fedsparq.lab.tasks import PerExample
from fedsparq.lab.tasks.supervised import Supervised
from fedsparq.lab.tasks.training import noisy_gradient

TASK = Supervised(clients=2, train_limit=60, test_limit=10)
INDICES = np.arange(20)


def quiet(count: int) -> np.ndarray:
    return np.zeros(count)


def own_gradients() -> np.ndarray:
    """Of each example alone, by torch.autograd.grad on the module's own parameters."""
    module, data, rows = TASK.network.module, TASK.data, []
    names = [tensor.name for tensor in TASK.layout.parameters]
    for index in INDICES:
        pixels = torch.tensor(data.train[0][index : index + 1]).float() / 255
        inputs = (pixels - torch.tensor(data.mean).view(-1, 1, 1)) / torch.tensor(data.std).view(-1, 1, 1)
        loss = torch.nn.functional.cross_entropy(module(inputs), torch.tensor(data.train[1][index : index + 1]))
        parameters = dict(module.named_parameters())
        parts = torch.autograd.grad(loss, [parameters[name] for name in names])
        rows.append(torch.cat([part.flatten() for part in parts]).double().numpy())
    return np.array(rows)


@pytest.mark.parametrize("clip", [0.5, 3.0, 1e6])
def test_each_example_is_clipped_alone(clip: float) -> None:
    rows = own_gradients()
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    expected = (rows * np.minimum(1, clip / norms)).sum(0) / 30
    made = noisy_gradient(TASK.network, TASK.data, INDICES, PerExample(clip, 1.0), 30.0, quiet)
    np.testing.assert_allclose(made, expected, rtol=1e-3, atol=1e-6)


def test_one_example_moves_the_sum_by_at_most_the_clip() -> None:
    options = PerExample(0.5, 1.0)
    whole = noisy_gradient(TASK.network, TASK.data, INDICES, options, 1.0, quiet).astype(np.float64)
    for left_out in (0, 7, 19):
        without = noisy_gradient(TASK.network, TASK.data, np.delete(INDICES, left_out), options, 1.0, quiet)
        assert 0.1 < np.linalg.norm(whole - without) <= 0.5 * (1 + 1e-5)


def test_the_noise_has_its_variance_everywhere() -> None:
    options = PerExample(0.5, 4.0)
    quietly = noisy_gradient(TASK.network, TASK.data, INDICES, options, 10.0, quiet).astype(np.float64)
    noise = (noisy_gradient(TASK.network, TASK.data, INDICES, options, 10.0) - quietly) * 10 / (4.0 * 0.5)
    assert 1e-4 < chi2.cdf(float((noise**2).sum()), noise.size) < 1 - 1e-4
