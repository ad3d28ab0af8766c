import pytest
import torch
from torch.nn.functional import max_pool2d, relu

from fedsparq.lab.tasks.networks import pool_relu


def values_and_gradient(function, x: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    pooled = function(x)
    (pooled * weights).sum().backward()
    return pooled.detach(), x.grad


@pytest.mark.parametrize("shape", [(32, 6, 28, 28), (2, 3, 5, 7), (1, 1, 2, 2)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_agrees_with_torch_to_the_bit(shape, memory_format):
    generator = torch.Generator().manual_seed(0)
    # Rounded, so that windows with ties, all zero and all negative occur.
    x = torch.randn(shape, generator=generator).round(decimals=0).contiguous(memory_format=memory_format)
    weights = torch.randn(*shape[:2], shape[2] // 2, shape[3] // 2, generator=generator)
    ours, our_gradient = values_and_gradient(pool_relu, x, weights)
    torchs, torchs_gradient = values_and_gradient(lambda x: relu(max_pool2d(x, 2)), x, weights)
    assert torch.equal(ours, torchs)
    assert torch.equal(our_gradient, torchs_gradient)


@pytest.mark.parametrize("place", range(4))
def test_a_nan_is_not_swallowed(place):
    x = torch.ones(1, 1, 2, 2)
    x.view(-1)[place] = torch.nan
    assert pool_relu(x).isnan().all()


def test_other_dtypes_go_to_torch():
    x = torch.randn(2, 1, 4, 4, dtype=torch.float64)
    assert torch.equal(pool_relu(x), relu(max_pool2d(x, 2)))
