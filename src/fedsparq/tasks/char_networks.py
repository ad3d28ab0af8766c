"""Models of text, character by character: an LSTM as in LEAF, and a small transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from fedsparq.errors import OptionError

Shape = tuple[int, ...]


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


def _window(model: str, inputs: Shape, **options: int) -> int:
    if len(inputs) != 1:
        raise OptionError(f"model {model!r} takes windows of a text, not examples of {inputs}")
    for name, value in options.items():
        if not isinstance(value, int) or value < 1:
            raise OptionError(f"model {model!r}: {name} must be a whole number of at least 1, got {value!r}")
    return inputs[0]
