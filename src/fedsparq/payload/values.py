"""Value kinds: how the values of a layer are decoded, written and read."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import OptionError, UpdateError, WireError
from fedsparq.layout import Tensor, Vector
from fedsparq.payload import kernels
from fedsparq.payload.selection import Indices
from fedsparq.payload.streams import Reader, Writer

LazyIndices = Callable[[], Indices]

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

_CODEBOOK = 3
_CODES = (0, 1, 2, _CODEBOOK, 6, 10, 14, 18, 22, 26)
"""Those of FSQ1 itself, as FORMAT.md lists them; that of a codebook also holds the size of its table."""
_USER_CODES = range(64, 255)


class Values(ABC):
    """The values that one layer sends, in the order of their indices.

    On the wire a layer is a header, then its chunks: at most 2^20 coordinates each, with the values that lie in it.
    A kind from outside the package says what `decode`, `write`, `read` and `join` do, has a code of its own, and is
    made known with `register_values` on both sides.
    """

    code: ClassVar[int]
    """The first byte of a layer's header. Free for other kinds: 64 to 254, but for those with ``code & 3 == 3``."""

    needs_every_coordinate: ClassVar[bool] = False
    """Whether a layer of this kind can only be sent as a whole."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of values."""

    @abstractmethod
    def decode(self) -> Vector:
        """Return the values as float32, decoded once: do not change them.

        Its work is bounded by the size of the layer: 128 operations a coordinate at most, whatever the message says.
        """

    def add_to(self, accumulator: Vector, indices: Indices | None, weight: np.float32) -> None:
        """Compute accumulator[indices] += weight * values; None: the accumulator is the layer, all of it sent."""
        values, count = self.decode(), accumulator.size if indices is None else indices.size
        if values.shape != (count,):
            raise UpdateError(f"{type(self).__name__} decodes to {list(values.shape)} values for {count:,} coordinates")
        kernels.add_scaled(accumulator, indices, values, weight)

    def scaled(self, factor: np.float32) -> Values | None:
        """Return factor * values in the same kind, of no more bytes; None if it cannot hold them."""
        return None

    def raw_bytes(self) -> int:
        """Return the bytes of the values before entropy coding, as papers count them."""
        return 4 * len(self)

    def largest(self) -> float:
        """Return the largest magnitude; nan if a value is not finite."""
        largest = float(np.abs(self.decode()).max(initial=0))
        return largest if largest < math.inf else math.nan

    def write_header(self, writer: Writer) -> None:
        """Write what precedes a layer's chunks: the code, then whatever the chunks share."""
        writer.byte(self.code)

    @abstractmethod
    def write(self, writer: Writer, part: slice) -> None:
        """The values of one chunk: `part` of all."""

    @classmethod
    def read_header(cls, reader: Reader, code: int, tensor: Tensor) -> Any:
        """Read what `write_header` wrote after the code: whatever `read` and `join` need of it."""
        return None

    @classmethod
    @abstractmethod
    def read(cls, reader: Reader, header: Any, count: int, tensor: Tensor) -> NDArray[Any]:
        """The `count` values of one chunk; WireError unless they are exactly right."""

    @classmethod
    @abstractmethod
    def join(cls, header: Any, data: NDArray[Any], indices: LazyIndices, tensor: Tensor) -> Values:
        """Build the values of a layer from the data of its chunks, concatenated (empty, of any dtype, if none).

        `indices` makes their indices, counted from the start of the layer: call it only if they are needed.
        """


class CachedValues(Values):
    """Values that are decoded once."""

    @property
    @abstractmethod
    def _decoded(self) -> Vector:
        """What `decode` returns: a cached property."""

    def decode(self) -> Vector:
        return self._decoded


class WholeLayer(CachedValues):
    """A value kind with all its data in the header: `read_header` returns the values themselves."""

    needs_every_coordinate: ClassVar[bool] = True

    def write(self, writer: Writer, part: slice) -> None:
        """Write nothing: all is in the header."""

    @classmethod
    def read(cls, reader: Reader, header: Values, count: int, tensor: Tensor) -> NDArray[Any]:
        return np.empty(0, np.uint8)

    @classmethod
    def join(cls, header: Values, data: NDArray[Any], indices: LazyIndices, tensor: Tensor) -> Values:
        return header


Kind = TypeVar("Kind", bound=type[Values])

_kinds: dict[int, type[Values]] = {}


def register_values(kind: Kind) -> Kind:
    """Register a value kind, so that messages with it can be read (a class decorator)."""
    if not (isinstance(kind, type) and issubclass(kind, Values)):
        raise OptionError(f"{kind!r} is no value kind: it must be a subclass of Values")
    if kind.__abstractmethods__:
        raise OptionError(f"{kind.__name__} does not say how to {', '.join(sorted(kind.__abstractmethods__))}")
    code = getattr(kind, "code", None)
    if not isinstance(code, int) or code not in _USER_CODES or code & 3 == _CODEBOOK:
        raise OptionError(
            f"{kind.__name__} has code {code}; other kinds than FSQ1's have one from 64 to 254 with code & 3 != 3"
        )
    return register_builtin(kind)


def register_builtin(kind: Kind) -> Kind:
    """Register a kind of FSQ1 itself, as `register_values`."""
    taken = _kinds.get(kind.code, kind)
    if (taken.__module__, taken.__qualname__) != (kind.__module__, kind.__qualname__):
        raise OptionError(f"{kind.__name__} has code {kind.code}, which {taken.__name__} already has; take another")
    _kinds[kind.code] = kind
    return kind


def check_complete() -> None:
    """Raise an error unless every code of FORMAT.md has a class."""
    missing = [code for code in _CODES if code not in _kinds]
    if missing:
        raise ImportError(f"no kind of value is registered for FSQ1's codes {missing}")


def value_kind(code: int, layer: str) -> type[Values]:
    """Return the value kind whose header starts with this byte."""
    kind = _kinds.get(_CODEBOOK if code & 3 == _CODEBOOK else code)
    if kind is None:
        raise WireError(
            f"layer {layer!r}: values of code {code} are not known here; "
            "where both sides use a kind of their own, both must register it"
        )
    return kind
