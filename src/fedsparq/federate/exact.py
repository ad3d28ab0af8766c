"""Named arrays as frameworks serialize them: which of a model's arrays are compressed, and which travel exactly.

Float32 and float16 parameters are compressed, as one flat vector. Integers, booleans, float64, running statistics and
types that numpy does not have are exact arrays: they travel unchanged, and only where they changed.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedsparq.errors import UpdateError, WireError
from fedsparq.federate.serialized import NUMPY, ExactArray, Record, Serialized, array_digest, to_array, view
from fedsparq.layout import Buffers, Layout, Vector
from fedsparq.payload import Payload

COMPRESSIBLE = ("float16", "float32")
_MAX_TEXT = 1 << 24
_MAX_RATIO = 64

Entry = tuple[str, str, tuple[int, ...]]
"""An array without its values: name, type, shape."""
Ties = tuple[tuple[str, str], ...]
"""Pairs of arrays that are one tensor under two names: the first changes as the second does."""


@dataclass(frozen=True)
class ArraySpec:
    """The arrays of a model without their values."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, record: Record) -> ArraySpec:
        return cls(tuple((name, array.dtype, tuple(array.shape)) for name, array in record.items()))

    @cached_property
    def layout(self) -> Layout:
        """The arrays that are compressed."""
        return _compressed(self.entries)

    @cached_property
    def exact(self) -> tuple[str, ...]:
        """The names of the arrays that travel exactly."""
        compressed = {tensor.name for tensor in self.layout.tensors}
        return tuple(name for name, _, _ in self.entries if name not in compressed)

    @cached_property
    def digest(self) -> int:
        return xxhash.xxh3_64_intdigest(self.to_json().encode())

    def to_json(self) -> str:
        return json.dumps(self.entries, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> ArraySpec:
        try:
            found = tuple(map(_entry, json.loads(text)))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise WireError(f"the names and shapes of a model cannot be read: {error}") from None
        if len({name for name, _, _ in found}) < len(found):
            raise WireError("the names of a model name an array twice")
        return cls(found)

    def check(self, record: Record) -> None:
        """Refuse a record of another model, with the array that differs."""
        shapes = {name: shape for name, _, shape in self.entries}
        for name in record:
            if name not in shapes:
                raise UpdateError(f"tensor {name!r} is not in the model; both sides need the same model")
        for name, shape in shapes.items():
            if name not in record:
                raise UpdateError(f"tensor {name!r} of the model is missing; both sides need the same model")
            if name not in self.exact and tuple(record[name].shape) != shape:
                raise UpdateError(
                    f"tensor {name!r} has shape {tuple(record[name].shape)}, the model has {shape}; "
                    "both sides need the same model"
                )


def _entry(listed: Any) -> Entry:
    """An entry as JSON has it; ValueError or TypeError for what is none."""
    name, dtype, shape = listed
    if not (isinstance(name, str) and isinstance(dtype, str)):
        raise ValueError("the name or the type of an array is not a text")
    if not all(type(length) is int and 0 <= length < 2**32 for length in shape):
        raise ValueError(f"an array cannot have the shape {str(shape)[:80]}")
    return name, dtype, tuple(shape)


class _Typed(NamedTuple):
    dtype: str
    shape: tuple[int, ...]


@lru_cache(8)
def _compressed(entries: tuple[Entry, ...]) -> Layout:
    floats = {name: _Typed(dtype, shape) for name, dtype, shape in entries if dtype in COMPRESSIBLE}
    trained = {tensor.name for tensor in Layout.of(floats).parameters}
    return Layout.of({name: typed for name, typed in floats.items() if name in trained})


@dataclass(frozen=True, eq=False)
class NamedModel:
    """A model as one side has it: a vector (`built`), or named arrays as they were serialized (`record`)."""

    layout: Layout
    """Of what is compressed."""
    spec: ArraySpec | None = None
    """None where the model has no named arrays."""
    exact: Record = field(default_factory=dict)
    record: Record | None = None
    built: Vector | None = None
    buffers: Buffers | None = None
    """Where there are no exact arrays: the statistics and counters of the layout."""

    @classmethod
    def of(cls, record: Record) -> NamedModel:
        spec = ArraySpec.of(record)
        return cls(spec.layout, spec, {name: record[name] for name in spec.exact}, record)

    @property
    def named_spec(self) -> ArraySpec:
        """The names, of a model that has them."""
        if self.spec is None:
            raise UpdateError("this model has no named arrays")
        return self.spec

    @cached_property
    def vector(self) -> Vector:
        return self.built if self.built is not None else to_vector(self.record or {}, self.layout)

    @cached_property
    def digest(self) -> int:
        """Of every array; equal for equal models."""
        each = (f"{name}{array_digest(array)}" for name, array in self.arrays().items())
        return xxhash.xxh3_64_intdigest("".join(each).encode())

    def arrays(self) -> dict[str, Serialized]:
        """Every array, serialized, in the model's order."""
        if self.record is not None:
            return dict(self.record)
        spans, arrays = {tensor.name: tensor.span for tensor in self.layout.tensors}, dict[str, Serialized]()
        for name, dtype, shape in self.named_spec.entries:
            span = spans.get(name)
            arrays[name] = (
                self.exact[name] if span is None else to_array(self.vector[span].reshape(shape).astype(dtype))
            )
        return arrays

    def parts(self) -> Iterator[NDArray[Any]]:
        """The compressed arrays one after another, flat; serialized ones are not copied."""
        for tensor in self.layout.tensors:
            yield view(self.record[tensor.name]).reshape(-1) if self.record is not None else self.vector[tensor.span]

    def once(self) -> NamedModel:
        """The same model without the vector, where a record can hold it all: a large one is then in memory once."""
        if self.spec is None or (self.record is None and any(t.dtype != "float32" for t in self.layout.tensors)):
            return self
        return NamedModel(self.layout, self.spec, self.exact, self.arrays())

    def difference(self, after: Record) -> tuple[Vector, Ties]:
        """What training changed, without a second copy of the model; and which arrays are tied: equal before and
        after.
        """
        layout, before = self.layout, list(self.parts())
        update, ties, seen = np.empty(layout.size, np.float32), [], dict[Any, int]()
        now = [view(after[tensor.name]).reshape(-1) for tensor in layout.tensors]
        for number, tensor in enumerate(layout.tensors):
            moved = update[tensor.span]
            np.subtract(now[number], before[number], out=moved, casting="same_kind", dtype=np.float32)
            if not tensor.size:
                continue
            key = tensor.shape, tensor.dtype, before[number][0].tobytes(), now[number][0].tobytes()
            other = seen.setdefault(key, number)
            if other != number and moved.any() and all((each[number] == each[other]).all() for each in (before, now)):
                ties.append((tensor.name, layout.tensors[other].name))
        for name, _ in ties:
            update[span_of(layout, name)] = 0
        return update, tuple(ties)

    def after(self, payload: Payload, exact: Record, ties: Ties, wide: bool = False) -> dict[str, Serialized]:
        """The arrays once an update is added, in their own types: what plain transport would have delivered.

        `wide`: as float64, where rounding would move them by more than the update does.
        """
        update, tied, arrays = payload.dense(), dict(ties), dict[str, Serialized]()
        spans = {tensor.name: tensor for tensor in self.layout.tensors}
        for name, array in self.arrays().items():
            tensor = spans.get(tied.get(name, name))
            if tensor is None:
                arrays[name] = exact.get(name, array)
                continue
            change, dtype = update[tensor.span].reshape(tensor.shape), np.float64 if wide else array.dtype
            moved = np.add(view(array), change, dtype=np.float64 if wide else None)
            arrays[name] = to_array(np.asarray(moved.astype(dtype, copy=False)))
        return arrays

    def check_plain(self, record: Record) -> None:
        """Refuse plain arrays that are not this model's, or that nobody can read."""
        self.named_spec.check(record)
        for array in record.values():
            view(array)

    def check_beside(self, arrays: Record, ties: Ties) -> None:
        """Refuse exact arrays or ties that this model cannot have."""
        for name, array in arrays.items():
            own = self.exact.get(name)
            if own is None:
                raise WireError(f"the array {name!r} beside the update is not one of the model's that travel exactly")
            if (array.stype, array.dtype, tuple(array.shape)) != (own.stype, own.dtype, tuple(own.shape)):
                kinds = f"{array.dtype}{list(array.shape)}, the model's is {own.dtype}{list(own.shape)}"
                raise WireError(f"the array {name!r} is {kinds}")
            if own.stype == NUMPY:
                view(array)
        shapes = {tensor.name: (tensor.shape, tensor.dtype) for tensor in self.layout.tensors}
        for one, other in ties:
            if one not in shapes or shapes[one] != shapes.get(other):
                raise WireError(f"the arrays {one!r} and {other!r} cannot be tied")


def span_of(layout: Layout, name: str) -> slice:
    for tensor in layout.tensors:
        if tensor.name == name:
            return tensor.span
    raise WireError(f"there is no array {name!r} in the model")


def model_digest(vector: int, exact: Mapping[str, int]) -> int:
    """Return the digest of a model, of those of its vector and its exact arrays."""
    return xxhash.xxh3_64_intdigest(f"{vector} {sorted(exact.items())}".encode()) if exact else vector


def to_vector(record: Record, layout: Layout) -> Vector:
    """The compressed arrays of a record as one flat vector; other arrays are passed over."""
    vector = np.empty(layout.size, np.float32)
    for tensor in layout.tensors:
        vector[tensor.span].reshape(tensor.shape)[...] = view(record[tensor.name])
    return vector


def pack_arrays(arrays: Record) -> bytes:
    """Arrays with their names and types, as bytes."""
    entries = [(n, a.dtype, tuple(a.shape), a.stype, len(a.data)) for n, a in arrays.items()]
    about = json.dumps(entries).encode()
    return b"".join((struct.pack("<I", len(about)), about, *(array.data for array in arrays.values())))


def unpack_arrays(data: bytes) -> dict[str, ExactArray]:
    """What `pack_arrays` packed."""
    arrays = {}
    try:
        (length,) = struct.unpack_from("<I", data)
        at = 4 + length
        for name, dtype, shape, stype, count in json.loads(data[4:at]):
            if count < 0 or at + count > len(data) or not all(type(size) is int for size in shape):
                raise ValueError("cut")
            arrays[str(name)] = ExactArray(str(dtype), tuple(shape), str(stype), bytes(data[at : at + count]))
            at += count
    except (struct.error, ValueError, TypeError, RecursionError) as error:
        raise WireError(f"packed arrays cannot be read: {error}") from None
    if at != len(data):
        raise WireError("packed arrays were cut on their way")
    return arrays


class Beside(NamedTuple):
    """What travels with a compressed vector: exact arrays, ties, and the model's spec with a whole model."""

    arrays: Record
    ties: Ties = ()
    spec: ArraySpec | None = None

    def encode(self) -> bytes:
        if not self.arrays and not self.ties and self.spec is None:
            return b""
        text = json.dumps([self.ties, self.spec and self.spec.to_json()]).encode()
        body = struct.pack("<I", len(text)) + text + pack_arrays(self.arrays)
        data = zlib.compress(body, 1)
        return data if len(body) <= _expanded(data) else zlib.compress(body, 0)

    @classmethod
    def decode(cls, data: bytes, limit: int | None = None) -> Beside:
        """Read what `encode` wrote; `limit` is how many bytes may come out of it at most."""
        inflater = zlib.decompressobj()
        try:
            body = inflater.decompress(data, min(_expanded(data), limit or _expanded(data)))
            if inflater.unconsumed_tail or inflater.unused_data or not inflater.eof:
                raise WireError("compressed arrays were cut, or hold more than they may")
            (length,) = struct.unpack_from("<I", body)
            ties, spec = json.loads(body[4 : 4 + length])
            pairs = tuple((str(one), str(other)) for one, other in ties)
        except (zlib.error, struct.error, ValueError, TypeError, RecursionError) as error:
            if isinstance(error, WireError):
                raise
            raise WireError(f"the arrays beside an update cannot be read: {error}") from None
        return cls(unpack_arrays(body[4 + length :]), pairs, None if spec is None else ArraySpec.from_json(str(spec)))

    @staticmethod
    def limit(exact: Iterable[Serialized]) -> int:
        """How many bytes a reply's exact arrays may be, given the model's."""
        return _MAX_TEXT + 8 * sum(len(array.data) for array in exact)


def _expanded(data: bytes) -> int:
    """How much these bytes may become: what is more repetitive is sent as it is."""
    return _MAX_TEXT + _MAX_RATIO * len(data)


NOTHING_BESIDE = Beside({})
