"""Models of images, tables and characters: MLP, LeNet-5, ResNet-18, LEAF's LSTM and a small transformer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import gelu, max_pool2d, relu, scaled_dot_product_attention

from fedsparq.compiled import jit
from fedsparq.errors import OptionError


def pool_relu(x: Tensor) -> Tensor:
    """``relu(max_pool2d(x, 2))``, to the bit; a NaN stays one."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return relu(max_pool2d(x, 2))
    pooled: Tensor = _PoolRelu.apply(x)  # type: ignore[no-untyped-call]
    return pooled


class _PoolRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        planes = x.detach().contiguous().numpy().reshape(-1, *x.shape[2:])
        height, width = x.shape[2] // 2, x.shape[3] // 2
        pooled = np.empty((len(planes), height, width), np.float32)
        winner = np.empty(pooled.shape, np.uint8)
        _pool(planes, pooled, winner)
        ctx.winner, ctx.shape = winner, x.shape
        return torch.from_numpy(pooled).view(*x.shape[:2], height, width)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = np.zeros((len(ctx.winner), *ctx.shape[2:]), np.float32)
        _unpool(gradients[0].contiguous().numpy().reshape(ctx.winner.shape), ctx.winner, gradient)
        return torch.from_numpy(gradient).view(ctx.shape)


_NONE = 4
"""The winner of a window without a positive value: nobody, so it passes no gradient on."""


@jit
def _pool(planes: NDArray[np.float32], pooled: NDArray[np.float32], winner: NDArray[np.uint8]) -> None:
    for plane in range(pooled.shape[0]):
        for row in range(pooled.shape[1]):
            for column in range(pooled.shape[2]):
                best, best_corner = np.float32(0), _NONE
                for corner in range(4):
                    value = planes[plane, 2 * row + corner // 2, 2 * column + corner % 2]
                    if value > best or value != value:
                        best, best_corner = value, corner
                pooled[plane, row, column] = best
                winner[plane, row, column] = best_corner


@jit
def _unpool(pooled: NDArray[np.float32], winner: NDArray[np.uint8], planes: NDArray[np.float32]) -> None:
    for plane in range(pooled.shape[0]):
        for row in range(pooled.shape[1]):
            for column in range(pooled.shape[2]):
                corner = winner[plane, row, column]
                if corner != _NONE:
                    planes[plane, 2 * row + corner // 2, 2 * column + corner % 2] = pooled[plane, row, column]


Shape = tuple[int, ...]


class MLP(nn.Module):
    """One hidden layer: inputs-128-outputs with ReLU."""

    def __init__(self, *, inputs: Shape, outputs: int, hidden: int = 128) -> None:
        super().__init__()
        if not isinstance(hidden, int) or hidden < 1:
            raise OptionError(f"model 'mlp': hidden must be a whole number of at least 1, got {hidden!r}")
        self.fc1 = nn.Linear(math.prod(inputs), hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.fc1(x.flatten(1).float())
        logits: Tensor = self.fc2(relu(hidden, inplace=True))
        return logits


class LeNet5(nn.Module):
    """LeNet-5 with ReLU and max pooling; images under 32 pixels are padded by 2, as its paper does."""

    def __init__(self, *, inputs: Shape, outputs: int) -> None:
        super().__init__()
        channels, height, width = image_shape("lenet5", inputs)
        padding = 2 if min(height, width) < 32 else 0
        rows, columns = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in (height, width))
        if min(rows, columns) < 1:
            raise OptionError(f"model 'lenet5' needs images of at least 12x12 pixels, got {height}x{width}")
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=padding)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * rows * columns, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, outputs)

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

    def __init__(self, *, inputs: Shape, outputs: int, stem: str = "imagenet") -> None:
        super().__init__()
        channels, *_ = image_shape("resnet18", inputs)
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
        self.fc = nn.Linear(512, outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(relu(self.bn1(self.conv1(images)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class CharLSTM(nn.Module):
    """LEAF's model of Shakespeare: characters as 8 numbers, two LSTM layers of 256; predicts at every place."""

    def __init__(self, *, inputs: Shape, outputs: int, embedding: int = 8, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        _window("char-lstm", inputs, embedding=embedding, hidden=hidden, layers=layers)
        self.embedding = nn.Embedding(outputs, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.fc = nn.Linear(hidden, outputs)

    def forward(self, characters: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(characters))
        logits: Tensor = self.fc(states)
        return logits


class CharTransformer(nn.Module):
    """A decoder with learned positions, normalisation before each part and no dropout."""

    def __init__(self, *, inputs: Shape, outputs: int, width: int = 128, layers: int = 3, heads: int = 4) -> None:
        super().__init__()
        length = _window("char-transformer", inputs, width=width, layers=layers, heads=heads)
        if width % heads:
            raise OptionError(f"model 'char-transformer': width={width} must be a multiple of heads={heads}")
        self.embedding = nn.Embedding(outputs, width)
        self.position = nn.Parameter(torch.empty(length, width))
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, outputs)
        for table in (self.embedding.weight, self.position):
            nn.init.normal_(table, std=0.02)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.embedding(characters) + self.position
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.fc(self.norm(x))
        return logits


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attend(self.norm1(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).flatten(2))
        result: Tensor = x + self.narrow(gelu(self.widen(self.norm2(x))))
        return result


def image_shape(model: str, inputs: Shape) -> tuple[int, int, int]:
    if len(inputs) != 3:
        raise OptionError(f"model {model!r} takes images of (channels, height, width), not examples of {inputs}")
    return inputs[0], inputs[1], inputs[2]


def _window(model: str, inputs: Shape, **options: int) -> int:
    if len(inputs) != 1:
        raise OptionError(f"model {model!r} takes windows of a text, not examples of {inputs}")
    for name, value in options.items():
        if not isinstance(value, int) or value < 1:
            raise OptionError(f"model {model!r}: {name} must be a whole number of at least 1, got {value!r}")
    return inputs[0]
