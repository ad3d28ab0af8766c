"""What a compressed update holds, between the algorithm that made it and the bytes that carry it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress import kernels
from fedsparq.compress.field_values import Buckets, Rotated
from fedsparq.errors import UpdateError
from fedsparq.layout import Exact, Layout

Positions = NDArray[np.uint32]


@dataclass(frozen=True)
class Floats:
    """Values as they are."""

    data: NDArray[np.float32]

    def __len__(self) -> int:
        return self.data.size

    def decoded(self) -> NDArray[np.float32]:
        return self.data


@dataclass(frozen=True)
class Halves:
    """Values as float16, kept as their bits: numpy's own float16 is slow."""

    bits: NDArray[np.uint16]

    def __len__(self) -> int:
        return self.bits.size

    def decoded(self) -> NDArray[np.float32]:
        out = np.empty(self.bits.size, np.float32)
        kernels.halves_to_floats(self.bits, out)
        return out


@dataclass(frozen=True)
class Steps:
    """Whole multiples of one step: value = step * level, level from -32767 to 32767 but never 0."""

    step: np.float32
    levels: NDArray[np.int16]

    def __len__(self) -> int:
        return self.levels.size

    def decoded(self) -> NDArray[np.float32]:
        return self.levels.astype(np.float32) * self.step


@dataclass(frozen=True)
class Magnitudes:
    """A sign and one of a few magnitudes: value = ± table[abs(level) - 1]."""

    table: NDArray[np.float32]
    levels: NDArray[np.int16]

    def __len__(self) -> int:
        return self.levels.size

    def decoded(self) -> NDArray[np.float32]:
        signed = np.concatenate([-self.table[::-1], np.zeros(1, np.float32), self.table])
        return np.take(signed, self.levels + np.int16(self.table.size))


Values = Floats | Halves | Steps | Magnitudes | Buckets | Rotated


@dataclass(frozen=True)
class Everything:
    """Every coordinate is sent, none is named."""

    size: int

    @property
    def count(self) -> int:
        return self.size

    def positions(self) -> Positions:
        return np.arange(self.size, dtype=np.uint32)


@dataclass(frozen=True)
class Listed:
    """The coordinates that are sent, in rising order."""

    places: Positions

    def positions(self) -> Positions:
        return self.places


@dataclass(frozen=True)
class Seeded:
    """`count` coordinates that both sides draw from one seed: only the seed is sent."""

    size: int
    count: int
    seed: int

    def positions(self) -> Positions:
        places = np.empty(self.count, np.uint32)
        kernels.random_positions(np.uint64(self.seed), self.size, self.count, places)
        return places


Selection = Everything | Listed | Seeded


@dataclass(frozen=True)
class Layer:
    """One layer's share of a payload."""

    name: str
    start: int
    size: int
    positions: Positions
    values: Values


@dataclass(frozen=True)
class Payload:
    """A compressed update: which coordinates, and per layer their values in order.

    `exact` carries the buffers and counters of the layout; None where the layout has none or nobody set them.
    """

    layout: Layout
    selection: Selection
    values: tuple[Values, ...]
    exact: Exact | None = None

    @cached_property
    def positions(self) -> Positions:
        return self.selection.positions()

    @property
    def kept(self) -> int:
        """How many coordinates are sent."""
        return sum(len(v) for v in self.values)

    @property
    def paper_bytes(self) -> int:
        """What the paper's accounting makes of it: 4 bytes an index, 4 a float32, 2 a float16, 1/8 a bit of a level."""
        indices = 4 * self.kept if isinstance(self.selection, Listed) else 0
        return indices + sum(_paper_bytes(v) for v in self.values)

    def layers(self) -> Iterator[Layer]:
        done = 0
        for tensor, values in zip(self.layout.parameters, self.values, strict=True):
            positions = self.positions[done : done + len(values)]
            yield Layer(tensor.name, tensor.offset, tensor.size, positions, values)
            done += len(values)

    def dense(self) -> NDArray[np.float32]:
        """The update as the server will see it: zero where nothing was sent."""
        out = np.zeros(self.layout.size, np.float32)
        if isinstance(self.selection, Everything):
            np.concatenate([v.decoded() for v in self.values] or [out], out=out)
            return out
        for layer in self.layers():
            out[layer.positions] = layer.values.decoded()
        return out

    def add_to(self, accumulator: NDArray[np.float32], weight: float = 1.0) -> None:
        """accumulator += weight * dense(), without making the dense vector."""
        if accumulator.shape != (self.layout.size,) or accumulator.dtype != np.float32:
            raise UpdateError(
                f"the accumulator is {accumulator.dtype}{list(accumulator.shape)}; "
                f"it must be float32[{self.layout.size}]"
            )
        if not accumulator.flags.writeable:
            raise UpdateError("the accumulator is read-only; give an array that can be changed")
        if not abs(weight) <= float(np.finfo(np.float32).max):
            raise UpdateError(f"the weight {weight} is not a finite float32")
        scale = np.float32(weight)
        if isinstance(self.selection, Everything):
            for tensor, values in zip(self.layout.parameters, self.values, strict=True):
                kernels.add_scaled(accumulator[tensor.span], values.decoded(), scale)
            return
        for layer in self.layers():
            if isinstance(layer.values, Halves):
                kernels.scatter_add_halves(accumulator, layer.positions, layer.values.bits, scale)
            else:
                kernels.scatter_add(accumulator, layer.positions, layer.values.decoded(), scale)


def _paper_bytes(values: Values) -> int:
    match values:
        case Floats():
            return 4 * len(values)
        case Halves():
            return 2 * len(values)
        case Rotated():
            return 4 * values.scales.size + values.negative.size
        case Steps() | Magnitudes() | Buckets():
            top = int(np.abs(values.levels).max(initial=1))
            return (len(values) * (1 + (top - 1).bit_length()) + 7) // 8
