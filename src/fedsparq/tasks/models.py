"""The models a client can train, by name, or a user's own by `package.module:function`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedsparq.errors import MissingExtraError, OptionError
from fedsparq.imports import describe_error, load_function
from fedsparq.tasks.dataset import Dataset
from fedsparq.tasks.options import call_checked

try:
    import torch
    from torch import Tensor, nn

    from fedsparq.tasks.char_networks import CharLSTM, CharTransformer
    from fedsparq.tasks.networks import MLP, LeNet5, ResNet18
except ImportError as error:
    raise MissingExtraError("training needs torch: pip install 'fedsparq[torch]'") from error

_MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "lenet5": LeNet5,
    "resnet18": ResNet18,
    "char-lstm": CharLSTM,
    "char-transformer": CharTransformer,
}
_OF_SQUARE_IMAGES = ("classes", "channels", "size")


@dataclass(frozen=True)
class Signature:
    """What a model takes and gives: the shape of an example, how many outputs, and at which positions of it."""

    inputs: tuple[int, ...]
    outputs: int
    positions: tuple[int, ...] = ()
    integers: bool = False
    """Whether the model gets integers, such as characters, and not floats."""

    @classmethod
    def of(cls, data: Dataset) -> Signature:
        return cls(data.inputs, data.outputs, data.positions, data.train[0].dtype.kind == "i")

    def example(self) -> Tensor:
        return torch.zeros(2, *self.inputs, dtype=torch.int64 if self.integers else torch.float32)


def build(name: str, signature: Signature, *, seed: int, **options: Any) -> nn.Module:
    """A freshly initialised model; its weights are a function of the arguments alone.

    ``name`` is one of the package's, or ``package.module:function``: a function of the user's own that takes
    ``inputs`` (the shape of one example), ``outputs`` (classes, or numbers to come close to) and the options by keyword
    and returns a torch module. The working directory counts as a place to import it from.
    """
    with torch.random.fork_rng(devices=[]):
        maker = _MODELS.get(name) or load_function(name, "model", _MODELS)
        offered = _offered(name, maker, signature)
        torch.manual_seed(seed)
        model = call_checked(f"model {name!r}", maker, {**offered, **options}, offered)
        _check(name, model, signature)
    checked: nn.Module = model
    return checked


def _offered(name: str, maker: Callable[..., Any], signature: Signature) -> Mapping[str, Any]:
    """What a function is called with: ``inputs`` and ``outputs``; or the classes, channels and size of square images
    where it has such parameters."""
    parameters = inspect.signature(maker).parameters
    offered: dict[str, Any] = {"inputs": signature.inputs, "outputs": signature.outputs}
    if any(key in parameters for key in _OF_SQUARE_IMAGES):
        if len(signature.inputs) != 3 or signature.inputs[1] != signature.inputs[2]:
            raise OptionError(
                f"model {name!r} takes the classes, channels and size of square images, but an example here has the "
                f"shape {signature.inputs}: let it take inputs and outputs"
            )
        offered |= {"classes": signature.outputs, "channels": signature.inputs[0], "size": signature.inputs[1]}
        return {key: value for key, value in offered.items() if key in parameters}
    return offered


def _check(name: str, model: Any, signature: Signature) -> None:
    """Refuse what cannot be trained as a flat vector, or does not give what is wanted of an example."""
    if not isinstance(model, nn.Module):
        raise OptionError(f"model {name!r} gave a {type(model).__name__}; it must return a torch.nn.Module")
    expected = (2, *signature.positions, signature.outputs)
    try:
        with torch.no_grad():
            given = model.eval()(signature.example())
    except OptionError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise OptionError(
            f"model {name!r} cannot take an example of shape {signature.inputs}: {describe_error(error)}"
        ) from error
    shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
    if shape != expected:
        hint = "; for text there are char-lstm and char-transformer" if signature.positions and name in _MODELS else ""
        raise OptionError(f"model {name!r} gave {shape} for two examples, where {expected} are needed{hint}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise OptionError(f"model {name!r} has no parameters to train")
    state = model.state_dict(keep_vars=True)
    if len({id(value) for value in state.values()}) < len(state):
        raise OptionError(f"model {name!r} shares one tensor under two names, which a flat vector cannot hold")
