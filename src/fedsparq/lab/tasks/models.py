"""Build the models that a client can train, by name, or a user's own by `package.module:function`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsparq.errors import MissingExtraError, OptionError
from fedsparq.imports import call_checked, describe_error, load_function
from fedsparq.lab.tasks.dataset import Dataset

if TYPE_CHECKING:
    from torch import Tensor, nn

MODELS = {
    "mlp": "MLP",
    "lenet5": "LeNet5",
    "resnet18": "ResNet18",
    "char-lstm": "CharLSTM",
    "char-transformer": "CharTransformer",
}
"""By name, the class in `fedsparq.lab.tasks.networks`, which needs torch."""


@dataclass(frozen=True)
class Signature:
    """Shapes of a model: one example, the number of outputs, and the positions of an example that each has some."""

    inputs: tuple[int, ...]
    outputs: int
    positions: tuple[int, ...] = ()
    integers: bool = False
    """Whether the model gets integers, such as characters, and not floats."""

    @classmethod
    def of(cls, data: Dataset) -> Signature:
        return cls(data.inputs, data.outputs, data.positions, data.train[0].dtype.kind == "i")

    def example(self) -> Tensor:
        import torch

        return torch.zeros(2, *self.inputs, dtype=torch.int64 if self.integers else torch.float32)


def build(name: str, signature: Signature, *, seed: int, **options: Any) -> nn.Module:
    """Build a model; its weights are a function of the arguments alone.

    ``name`` is one of the package's, or ``package.module:function``: a function of the user's own that takes
    ``inputs`` (the shape of one example), ``outputs`` (classes, or numbers to predict) and the options by keyword
    and returns a torch module. The working directory counts as a place to import it from.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("training needs torch: pip install 'fedsparq[lab]'") from error
    known: dict[str, Any] = {"inputs": signature.inputs, "outputs": signature.outputs}
    with torch.random.fork_rng(devices=[]):
        maker: Callable[..., nn.Module] = (
            getattr(import_module("fedsparq.lab.tasks.networks"), MODELS[name])
            if name in MODELS
            else load_function(name, "model", MODELS)
        )
        torch.manual_seed(seed)
        model = call_checked(f"model {name!r}", maker, known | options, known)
        _check(name, model, signature)
    checked: nn.Module = model
    return checked


def _check(name: str, model: Any, signature: Signature) -> None:
    """Refuse what cannot be trained as a flat vector, or has other outputs than the data need."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise OptionError(f"model {name!r} gave a {type(model).__name__}; it must return a torch.nn.Module")
    expected = (2, *signature.positions, signature.outputs)
    try:
        with torch.no_grad():
            output = model.eval()(signature.example())
    except OptionError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise OptionError(
            f"model {name!r} cannot take an example of shape {signature.inputs}: {describe_error(error)}"
        ) from error
    shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if shape != expected:
        hint = "; for text there are char-lstm and char-transformer" if signature.positions and name in MODELS else ""
        raise OptionError(f"model {name!r} gave {shape} for two examples, where {expected} are needed{hint}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise OptionError(f"model {name!r} has no parameters to train")
    state = model.state_dict(keep_vars=True)
    if len({id(value) for value in state.values()}) < len(state):
        raise OptionError(f"model {name!r} shares one tensor under two names, which a flat vector cannot hold")
