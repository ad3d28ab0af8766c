"""A model cut into pieces that fit into memory: some whole layers each, or a part of a layer that is too large."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from fedsparq.layout import Layout, Vector

Shapes = Mapping[str, tuple[int, ...]]


class Tensors(Protocol):
    """Tensors whose shapes are known, and whose values can be read a part at a time, more than once."""

    @property
    def shapes(self) -> Shapes: ...

    def part(self, name: str, start: int, stop: int) -> Vector:
        """Return coordinates of one tensor in C order, as float32; not to be changed."""


GROUP = 1 << 22
"""Neighbouring layers make one piece as long as they have no more coordinates than this together."""
CUT = 1 << 26
"""A layer with more coordinates than this is cut every so many, and each part is a layer of its own."""
LARGEST_CUT = 1 << 28
"""What a reader will take into memory at once, whatever a message says."""


@dataclass(frozen=True)
class Part:
    """A whole layer, or some of a large one: coordinates `start` to `stop`, in C order."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    whole: bool

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def label(self) -> str:
        """Its name in the layout of its piece."""
        return self.name if self.whole else f"{self.name}[{self.start}:{self.stop}]"


@dataclass(frozen=True)
class Piece:
    """What is compressed, written and read at a time."""

    number: int
    parts: tuple[Part, ...]

    @cached_property
    def layout(self) -> Layout:
        return Layout.of({part.label: part.shape for part in self.parts})

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def gather(self, tensors: Tensors) -> Vector:
        """Return the piece of these tensors in one vector: a view where it is one part of a file."""
        parts = [tensors.part(part.name, part.start, part.stop) for part in self.parts]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def split(self, vector: Vector) -> Iterator[tuple[Part, Vector]]:
        """Return each part with its share of the piece's vector."""
        return zip(self.parts, (vector[tensor.span] for tensor in self.layout.parameters), strict=True)


def cut(shapes: Shapes, group: int = GROUP, most: int = CUT) -> Iterator[Piece]:
    """Cut a model into pieces, in order, one at a time. Both sides of a message cut equally."""
    number, held, parts = 0, 0, list[Part]()
    for name, shape in shapes.items():
        size = math.prod(shape)
        if parts and (size > most or held + size > group):
            yield Piece(number, tuple(parts))
            number, held, parts = number + 1, 0, []
        if size <= most:
            held += size
            parts.append(Part(name, 0, size, shape, True))
            continue
        for start in range(0, size, most):
            stop = min(start + most, size)
            yield Piece(number, (Part(name, start, stop, (stop - start,), False),))
            number += 1
    if parts:
        yield Piece(number, tuple(parts))
