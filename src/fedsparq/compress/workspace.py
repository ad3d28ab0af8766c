"""The vector that one round compresses, and compressors that take what they send away from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress import kernels
from fedsparq.errors import UpdateError
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.payload import Indices, Payload, Sparse, Values
from fedsparq.protocols import Compressed, CompressorTraits
from fedsparq.threads import granted, together

T = TypeVar("T")
Layered = tuple[Indices, Values]
"""What is sent of one layer: indices in the whole vector, and their values."""


class Workspace:
    """The update plus the residual, made some layers at a time when first asked for: they are then still in cache.

    Compressors take what they send away from it, so that in the end it holds the next residual. `recycle` is memory
    that nobody needs any more.
    """

    def __init__(
        self, layout: Layout, update: Vector, residual: Vector | None = None, recycle: Vector | None = None
    ) -> None:
        self.layout = layout
        self.update = check_update(update, layout)
        """The update alone, without what was left over from earlier rounds."""
        self._residual = residual
        if recycle is None or recycle is residual or recycle.shape != (layout.size,) or not recycle.flags.writeable:
            recycle = np.empty(layout.size, np.float32)
        self._vector = recycle
        self._sums = np.empty(len(layout.parameters))
        self._made = 0
        self.threads = granted()
        """How many may be used."""

    @property
    def vector(self) -> Vector:
        """All layers in one vector."""
        self._make(len(self._sums))
        return self._vector

    @property
    def sums(self) -> NDArray[np.float64]:
        """The sum of each layer's magnitudes, as they were before anything was taken away."""
        self._make(len(self._sums))
        return self._sums

    def groups(self) -> Iterator[tuple[slice, Vector, NDArray[np.float64]]]:
        """Neighbouring layers at a time: which they are, the vector of all layers (made up to these), their sums."""
        for first, last in self.layout.groups:
            self._make(last)
            yield slice(first, last), self._vector, self._sums[first:last]

    def _make(self, last: int) -> None:
        """Make the layers before `last`."""
        if self._made < last:
            groups = [group for group in self.layout.groups if self._made <= group[0] < last]
            together(self._add, groups, self.threads, self._size)
            self._made = last
            self._check()

    def _add(self, group: tuple[int, int]) -> None:
        first, last = group
        bounds, sums = self.layout.bounds[first : last + 1], self._sums[first:last]
        kernels.add(self.update, self._residual, self._vector, bounds, sums)

    def _size(self, group: tuple[int, int]) -> int:
        return int(self.layout.bounds[group[1]] - self.layout.bounds[group[0]])

    def by_group(self, function: Callable[[slice, Vector, NDArray[np.float64]], T]) -> list[T]:
        """What a function of `groups` gives for each of them, on as many threads as there are."""

        def call(group: tuple[int, int]) -> T:
            self._add(group)
            return function(slice(*group), self._vector, self._sums[slice(*group)])

        results = together(call, self.layout.groups, self.threads, self._size)
        self._made = len(self._sums)
        self._check()
        return results

    def _check(self) -> None:
        if not np.isfinite(self._sums[: self._made]).all():
            self._refuse()

    def _refuse(self) -> None:
        index = int(np.flatnonzero(~np.isfinite(self._sums[: self._made]))[0])
        tensor = self.layout.parameters[index]
        layer = self._vector[tensor.span]
        bad = int(np.flatnonzero(~np.isfinite(layer))[0])
        raise UpdateError(
            f"layer {tensor.name!r} of the update holds {layer[bad]} at index {bad} of {tensor.size}; "
            "every value must be finite (did training diverge? try a lower learning rate)"
        )


class Fused(ABC):
    """A compressor that takes what it sends away from a workspace as it goes: no second pass finds what is left."""

    @property
    def traits(self) -> CompressorTraits:
        return CompressorTraits()

    subtracts: ClassVar[bool] = True
    """Whether what is left in the workspace is the update less the payload."""

    def init(self, layout: Layout) -> Arrays:
        """The state before the first round."""
        return {}

    @abstractmethod
    def compress_in_place(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Compressed:
        """The payload and the next state; the given state is not changed."""

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        """The same for an update that stays as it is."""
        return self.compress_in_place(Workspace(layout, update), state, rng)


def assemble(layout: Layout, layers: Iterable[Layered]) -> Payload:
    """The payload of each layer's indices (in the whole vector) and values."""
    indices, values = zip((np.empty(0, np.uint32), None), *layers, strict=True)
    return Payload(layout, Sparse(np.concatenate(indices)), values[1:])


def check_update(update: object, layout: Layout) -> Vector:
    """The update as a contiguous float32 vector of the layout's size, or an error that says what is wrong."""
    if not isinstance(update, np.ndarray) or update.dtype != np.float32 or update.shape != (layout.size,):
        kind = f"{update.dtype}{list(update.shape)}" if isinstance(update, np.ndarray) else type(update).__name__
        raise UpdateError(f"the update is {kind}; this layout takes float32[{layout.size}]")
    return np.ascontiguousarray(update)
