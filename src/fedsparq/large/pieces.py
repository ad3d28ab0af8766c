"""A model cut into pieces that fit into memory: some whole layers each, or a part of a layer that is too large."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fedsparq.layout import Layout

Shapes = Mapping[str, tuple[int, ...]]

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


def cut(shapes: Shapes, group: int = GROUP, most: int = CUT) -> tuple[Piece, ...]:
    """The pieces of a model, in order. Both sides of a message cut alike."""
    pieces: list[tuple[Part, ...]] = []
    open_parts: list[Part] = []
    for name, shape in shapes.items():
        size = math.prod(shape)
        if size > most:
            ranges = ((start, min(start + most, size)) for start in range(0, size, most))
            own = [(Part(name, start, stop, (stop - start,), False),) for start, stop in ranges]
            pieces += [tuple(open_parts), *own] if open_parts else own
            open_parts = []
            continue
        if open_parts and sum(part.size for part in open_parts) + size > group:
            pieces.append(tuple(open_parts))
            open_parts = []
        open_parts.append(Part(name, 0, size, shape, True))
    if open_parts:
        pieces.append(tuple(open_parts))
    return tuple(Piece(number, parts) for number, parts in enumerate(pieces))
