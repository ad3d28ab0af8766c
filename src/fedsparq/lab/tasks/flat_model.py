"""A torch module whose parameters are one flat vector."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import MissingExtraError, OptionError
from fedsparq.layout import Buffers, Layout, Vector

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise MissingExtraError("training needs torch: pip install 'fedsparq[torch]'") from error

_CPU = torch.device("cpu")


class FlatModel:
    """A module whose parameters are views into one vector, and whose gradients are views into another.

    A client's update is then one subtraction, and an optimizer step a few operations whatever the number of layers.
    The module is taken over: its parameters must not be replaced afterwards, only changed in place.
    """

    def __init__(self, module: nn.Module, device: torch.device = _CPU) -> None:
        self.module, self.device = module.to(device), device
        self.layout = Layout.of(module)
        _check_float32(self.layout)
        self._has_buffers = bool(self.layout.buffers or self.layout.counters)
        state = module.state_dict(keep_vars=True)
        if len({id(value) for value in state.values()}) < len(state):
            raise OptionError("the model shares one tensor under two names, which a flat vector cannot hold")
        self.vector = torch.empty(self.layout.size, device=device)
        self.gradient = torch.zeros(self.layout.size, device=device)
        for tensor in self.layout.parameters:
            parameter = state[tensor.name]
            view = self.vector[tensor.span].view(tensor.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = self.gradient[tensor.span].view(tensor.shape)
        self.has_batch_norm = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())

    def load(self, vector: Vector, buffers: Buffers | None = None) -> None:
        """Take over parameters, and statistics and counters where the model has any; all are copied."""
        arrays = self.layout.unflatten(vector, buffers)
        self.vector.copy_(_tensor(vector))
        if self._has_buffers:
            for name, tensor in self.module.state_dict().items():
                tensor.copy_(_tensor(arrays[name]))

    def state(self) -> tuple[Vector, Buffers | None]:
        """A copy of the parameters, and of the statistics and counters where the model has any."""
        if not self._has_buffers:
            return self.vector.numpy(force=True).copy(), None
        return self.layout.flatten({name: tensor.cpu().numpy() for name, tensor in self.module.state_dict().items()})


def _tensor(array: NDArray[np.generic]) -> Tensor:
    """A tensor to copy from; torch warns about arrays it could not write to, so those are copied first."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _check_float32(layout: Layout) -> None:
    for tensor in (*layout.parameters, *layout.buffers):
        if tensor.dtype != "float32":
            raise OptionError(f"tensor {tensor.name!r} is {tensor.dtype}; a trained model must be float32")
