"""The models a client can train, by name, or a user's own by `package.module:function`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedsparq.errors import MissingExtraError, OptionError

try:
    import torch
    from torch import Tensor, nn
    from torch.nn.functional import relu

    from fedsparq.learn.pooling import pool_relu
except ImportError as error:
    raise MissingExtraError("training needs torch: pip install 'fedsparq[torch]'") from error

Size = int | tuple[int, int]
"""Height and width of an image; one number stands for a square."""


class MLP(nn.Module):
    """One hidden layer: pixels-128-classes with ReLU."""

    def __init__(self, *, classes: int, channels: int, size: Size, hidden: int = 128) -> None:
        super().__init__()
        height, width = _height_width(size)
        if not isinstance(hidden, int) or hidden < 1:
            raise OptionError(f"model 'mlp': hidden must be a whole number of at least 1, got {hidden!r}")
        self.fc1 = nn.Linear(channels * height * width, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden: Tensor = self.fc1(images.flatten(1))
        logits: Tensor = self.fc2(relu(hidden, inplace=True))
        return logits


class LeNet5(nn.Module):
    """LeNet-5 with ReLU and max pooling; images under 32 pixels are padded by 2, as its paper does."""

    def __init__(self, *, classes: int, channels: int, size: Size) -> None:
        super().__init__()
        height, width = _height_width(size)
        padding = 2 if min(height, width) < 32 else 0
        rows, columns = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in (height, width))
        if min(rows, columns) < 1:
            raise OptionError(f"model 'lenet5' needs images of at least 12x12 pixels, got {height}x{width}")
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=padding)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * rows * columns, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = pool_relu(self.conv1(images))
        x = pool_relu(self.conv2(x))
        x = relu(self.fc1(x.flatten(1)), inplace=True)
        x = relu(self.fc2(x), inplace=True)
        logits: Tensor = self.fc3(x)
        return logits


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.bn2(self.conv2(x))
        return relu(x + shortcut, inplace=True)


class ResNet18(nn.Module):
    """ResNet-18 with torchvision's names and shapes; stem="cifar" keeps small images at full resolution."""

    def __init__(self, *, classes: int, channels: int, size: Size, stem: str = "imagenet") -> None:
        super().__init__()
        _height_width(size)
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1)
        elif stem == "cifar":
            self.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
            self.maxpool = nn.Identity()
        else:
            raise OptionError(f"model 'resnet18': stem must be 'imagenet' or 'cifar', got {stem!r}")
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(relu(self.bn1(self.conv1(images)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


_MODELS: dict[str, Callable[..., nn.Module]] = {"mlp": MLP, "lenet5": LeNet5, "resnet18": ResNet18}


def build(name: str, *, classes: int, channels: int, size: Size, seed: int, **options: Any) -> nn.Module:
    """A freshly initialised model; its weights are a function of the arguments alone.

    ``name`` is one of `catalogue()`, or ``package.module:function``: a function of the user's own that takes
    ``classes``, ``channels``, ``size`` and the options by keyword and returns a torch module. The working
    directory counts as a place to import it from.
    """
    for what, value in (("classes", classes), ("channels", channels)):
        if value < 1:
            raise OptionError(f"a model needs {what} of at least 1, got {value}")
    with _importable_from_here(), torch.random.fork_rng(devices=[]):
        maker = _MODELS[name] if name in _MODELS else _import(name)
        arguments = {"classes": classes, "channels": channels, "size": size, **options}
        _check_arguments(name, maker, arguments)
        torch.manual_seed(seed)
        model = maker(**arguments)
    if not isinstance(model, nn.Module):
        raise OptionError(f"model {name!r} gave a {type(model).__name__}; it must return a torch.nn.Module")
    return model


def catalogue() -> dict[str, str]:
    """The built-in models and what each is, in one line."""
    return {name: inspect.getdoc(maker) or "" for name, maker in _MODELS.items()}


def _height_width(size: Size) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise OptionError(f"an image needs at least 1x1 pixels, got {height}x{width}")
    return height, width


def _import(name: str) -> Callable[..., nn.Module]:
    module_name, colon, function_name = name.partition(":")
    if not (colon and module_name and function_name):
        raise OptionError(f"unknown model {name!r}: choose from {', '.join(_MODELS)}, or give package.module:function")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise OptionError(f"model {name!r}: cannot import {module_name!r} ({error})") from error
    maker = getattr(module, function_name, None)
    if not callable(maker):
        raise OptionError(f"model {name!r}: module {module_name!r} has no function {function_name!r}")
    made: Callable[..., nn.Module] = maker
    return made


def _check_arguments(name: str, maker: Callable[..., nn.Module], arguments: dict[str, Any]) -> None:
    signature = inspect.signature(maker)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        own = [option for option in signature.parameters if option not in ("classes", "channels", "size")]
        raise OptionError(f"model {name!r}: {error}; its options are: {', '.join(own) or 'none'}") from error


@contextmanager
def _importable_from_here() -> Iterator[None]:
    """Let a user's own model file beside the spec be imported, after everything that is installed."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)
