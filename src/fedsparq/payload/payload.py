"""A compressed update in memory: the coordinates that are sent, and the values of each layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsparq.errors import UpdateError
from fedsparq.layout import Buffers, Layout, Vector
from fedsparq.payload import kernels
from fedsparq.payload.floats import Float32Values
from fedsparq.payload.selection import Dense, Indices, Selection, Sparse
from fedsparq.payload.values import LARGEST_FLOAT32, Values
from fedsparq.threads import imap, resolve_threads

Part = tuple[Values, Vector, Indices | None]
"""Values, and where they belong in a vector: at indices, or in all of it (None)."""


@dataclass(frozen=True)
class Layer:
    """One layer of a payload."""

    name: str
    start: int
    size: int
    indices: Indices
    """In the flat vector, not in the layer."""
    values: Values


@dataclass(frozen=True)
class Payload:
    """A compressed update: the coordinates that are sent, and per layer their values in order.

    `buffers` are the statistics and counters of the model; None if the layout has none, or they are not sent.

    >>> layout = Layout.of({"a": (3,), "b": (2,)})
    >>> payload = Payload.sparse(layout, np.array([1, 4]), np.array([0.5, -2], np.float32))
    >>> payload.dense().tolist()
    [0.0, 0.5, 0.0, 0.0, -2.0]
    """

    layout: Layout
    selection: Selection
    values: tuple[Values, ...]
    buffers: Buffers | None = None
    message: bytes | None = field(default=None, init=False, repr=False, compare=False)
    """The encoded payload, if it was already built to measure it; `replace` drops it."""

    def __post_init__(self) -> None:
        counts = [len(values) for values in self.values]
        sizes = [tensor.size for tensor in self.layout.parameters]
        if len(counts) != len(sizes):
            raise UpdateError(f"the payload has values for {len(counts)} layers; this layout has {len(sizes)}")
        if sum(counts) != self.selection.count or (isinstance(self.selection, Dense) and counts != sizes):
            raise UpdateError(f"the payload has {counts} values in its layers, which does not fit {self.selection}")

    @classmethod
    def sparse(cls, layout: Layout, indices: ArrayLike, values: Vector) -> Payload:
        """Build a payload from strictly increasing indices (any integer dtype) and their float32 values."""
        given, vector = np.asarray(indices), np.array(values)
        _check_indices(given, layout)
        listed = given.astype(np.uint32)
        _check_float32("values, one for each index", vector, listed.size)
        layers = [vector[part] for part in layout.split(listed)]
        for tensor, layer in zip(layout.parameters, layers, strict=True):
            if not np.isfinite(layer).all():
                raise UpdateError(f"layer {tensor.name!r}: a value is infinite or not a number; all must be finite")
        return cls(layout, Sparse(listed), tuple(map(Float32Values, layers)))

    @classmethod
    def full(cls, layout: Layout, vector: Vector, buffers: Buffers | None = None) -> Payload:
        """Build a payload of every coordinate as float32; the vector is not copied."""
        _check_float32("vector", vector, layout.size)
        vector = np.ascontiguousarray(vector)
        values = tuple(Float32Values(vector[tensor.span]) for tensor in layout.parameters)
        return cls(layout, Dense(layout.size), values, buffers)

    def with_message(self, message: bytes) -> Payload:
        """Return this payload with its encoding, which then need not be made again."""
        payload = replace(self)
        object.__setattr__(payload, "message", message)
        return payload

    @cached_property
    def indices(self) -> Indices:
        """The coordinates that are sent."""
        return self.selection.indices

    @property
    def kept(self) -> int:
        """How many coordinates are sent."""
        return sum(map(len, self.values))

    def check_indices(self) -> None:
        """Raise UpdateError unless the indices strictly increase and fit the layout, as compiled loops assume."""
        if isinstance(self.selection, Sparse):
            _check_indices(self.indices, self.layout)

    def layers(self) -> Iterator[Layer]:
        done = 0
        for tensor, values in zip(self.layout.parameters, self.values, strict=True):
            yield Layer(tensor.name, tensor.offset, tensor.size, self.indices[done : done + len(values)], values)
            done += len(values)

    def dense(self) -> Vector:
        """Return the update as the server will see it: zero where nothing was sent."""
        out = np.zeros(self.layout.size, np.float32)
        for values, part, indices in self._parts(out):
            part[... if indices is None else indices] = values.decode()
        return out

    def add_to(self, accumulator: Vector, weight: float = 1.0, *, threads: int | None = None) -> None:
        """Compute accumulator += weight * dense() without the dense vector; layers are added in parallel."""
        _check_float32("accumulator", accumulator, self.layout.size)
        if not accumulator.flags.writeable:
            raise UpdateError("the accumulator is read-only; give an array that can be changed")
        if not abs(weight) <= LARGEST_FLOAT32:
            raise UpdateError(f"the weight {weight} is not a finite float32")
        share = np.float32(weight)
        for _ in imap(
            lambda part: part[0].add_to(part[1], part[2], share),
            self._parts(accumulator),
            resolve_threads(threads, self.layout.size),
        ):
            pass

    def dot(self, vector: Vector) -> float:
        """Return the inner product with a dense vector, without building the dense vector of this one."""
        _check_float32("vector", vector, self.layout.size)
        total = 0.0
        for values, part, indices in self._parts(vector):
            decoded = values.decode()
            total += kernels.dot(part, decoded) if indices is None else kernels.gather_dot(part, indices, decoded)
        return total

    def _parts(self, vector: Vector) -> Iterator[Part]:
        """Return the values of each layer, and where they belong."""
        if isinstance(self.selection, Dense):
            for tensor, values in zip(self.layout.parameters, self.values, strict=True):
                yield values, vector[tensor.span], None
        else:
            indices, done = self.indices, 0
            for values in self.values:
                first, done = done, done + len(values)
                yield values, vector, indices[first:done]

    def scaled(self, factor: np.float32) -> Payload:
        """Return factor * update in the same kinds of values, of no more bytes; a kind that cannot becomes float32."""
        if not 0 <= factor <= LARGEST_FLOAT32:
            raise UpdateError(f"factor={factor}: it must be a finite number of at least 0")
        parts = ((values, values.scaled(factor)) for values in self.values)
        scaled = tuple(Float32Values(factor * old.decode()) if new is None else new for old, new in parts)
        return replace(self, values=scaled)

    @cached_property
    def norm(self) -> float:
        """The Euclidean norm of the update."""
        return float(np.sqrt(sum(np.square(values.decode(), dtype=np.float64).sum() for values in self.values)))

    def largest(self) -> float:
        """Return the largest magnitude; nan if a value is not finite."""
        return float(np.max([values.largest() for values in self.values], initial=0))


def _check_float32(what: str, array: NDArray[Any], size: int) -> None:
    if array.shape != (size,) or array.dtype != np.float32:
        raise UpdateError(f"the {what}: got {array.dtype}{list(array.shape)}; it must be float32[{size}]")


def _check_indices(indices: NDArray[Any], layout: Layout) -> None:
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise UpdateError(
            f"the indices are {indices.dtype}{list(indices.shape)}; they must be integers in one dimension, "
            "such as np.flatnonzero(mask)"
        )
    wrong = indices[1:] <= indices[:-1]
    if wrong.any():
        first = int(np.argmax(wrong))
        raise UpdateError(f"index {indices[first + 1]} follows index {indices[first]}; indices must strictly increase")
    if indices.size and not (indices[0] >= 0 and indices[-1] < layout.size):
        outside = indices[0] if indices[0] < 0 else indices[-1]
        raise UpdateError(f"index {outside} is out of range; this layout has {layout.size:,} coordinates, from 0 on")
