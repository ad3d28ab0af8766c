"""The content of a message, the bytes of each part, and their entropy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.layout import Layout
from fedsparq.payload import Payload, Sparse, Values, Writer
from fedsparq.payload.streams import Bytes
from fedsparq.wire.chunks import Part
from fedsparq.wire.frame import check_frame, read


@dataclass(frozen=True)
class LayerCost:
    """One layer's share of a message."""

    name: str
    size: int
    kept: int
    index_coding: str
    value_coding: str
    index_bytes: int
    value_bytes: int
    bound_bytes: float
    """What indices and values would cost at the entropy of independent coordinates with these frequencies."""

    @property
    def bytes(self) -> int:
        return self.index_bytes + self.value_bytes


@dataclass(frozen=True)
class Inspection:
    """A message taken apart: all its bytes are in one of the sums. Without a layout only the header is known."""

    digest: int
    total_bytes: int
    layers: tuple[LayerCost, ...] = ()
    other_bytes: Mapping[str, int] = field(default_factory=dict)
    """What belongs to no layer: the header, the checksum and so on."""

    @property
    def bound_bytes(self) -> float:
        return sum(layer.bound_bytes for layer in self.layers)


def inspect(blob: bytes, layout: Layout | None = None) -> Inspection:
    """Take a message apart. A message does not carry its layout; without one only the header is known."""
    if layout is None:
        return Inspection(check_frame(blob)[1], len(blob))
    parts, layers = list[Part](), []
    payload = read(blob, layout, parts)
    for layer in payload.layers():
        own = [part for part in parts if part.layer == layer.name]
        codings = dict.fromkeys(part.coding for part in own if part.coding)
        layers.append(
            LayerCost(
                name=layer.name,
                size=layer.size,
                kept=len(layer.values),
                index_coding=", ".join(codings),
                value_coding=_name(layer.values),
                index_bytes=sum(part.index_bytes for part in own),
                value_bytes=sum(part.value_bytes for part in own),
                bound_bytes=_bound_bits(payload, layer.values, layer.size) / 8,
            )
        )
    other = {part.coding: part.value_bytes for part in parts if part.layer is None and part.value_bytes}
    return Inspection(layout.digest, len(blob), tuple(layers), other)


def _bound_bits(payload: Payload, values: Values, size: int) -> float:
    indices = size * _binary_entropy(len(values) / size) if isinstance(payload.selection, Sparse) and size else 0.0
    counter = _EntropyCounter()
    values.write_header(counter)
    if len(values):
        values.write(counter, slice(0, len(values)))
    return indices + counter.bits


class _EntropyCounter(Writer):
    """Counts what a layer's values would cost at their entropy, instead of writing them."""

    def __init__(self) -> None:
        super().__init__()
        self.bits = 0.0
        self._unpacked: Bytes | None = None

    def raw(self, data: bytes | NDArray[Any]) -> None:
        """Count bytes as bits, wider numbers as one sequence of bytes for each of their places."""
        array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data)
        octets = array.reshape(-1).view(np.uint8)
        places = [np.unpackbits(octets)] if array.itemsize == 1 else octets.reshape(-1, array.itemsize).T
        self.bits += sum(map(_entropy_bits, places))

    def compress(self, data: Bytes) -> None:
        """Remember what the next stream is made of."""
        self._unpacked = data

    def stream(self, raw: bytes | NDArray[Any], frame: bytes | None) -> None:
        data, self._unpacked = np.frombuffer(raw, np.uint8) if self._unpacked is None else self._unpacked, None
        self.bits += _entropy_bits(data)


def _name(values: Values) -> str:
    """Return the name of a value kind as words: "float16", "uniform levels"."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", type(values).__name__)
    return words.removesuffix(" Values").lower()


def _entropy_bits(symbols: NDArray[np.integer]) -> float:
    """Return the bits of all these symbols, if each costs what its frequency among them says."""
    _, counts = np.unique(symbols, return_counts=True)
    return float((counts * np.log2(symbols.size / counts)).sum())


def _binary_entropy(p: float) -> float:
    return 0.0 if p in (0, 1) else float(-p * np.log2(p) - (1 - p) * np.log2(1 - p))
