"""Flower's records and ours: which arrays of a record are compressed, and which travel exactly as they are."""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import xxhash
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from fedsparq.errors import UpdateError, WireError
from fedsparq.layout import Layout, Vector

EXAMPLES = "num-examples"
"""Flower's name for the number of examples an app trained on."""

NUMPY = "numpy.ndarray"
"""How Flower says that an array's data is numpy's."""

COMPRESSIBLE = ("float16", "float32")

Entry = tuple[str, str, tuple[int, ...]]
"""An array without its values: name, type, shape."""


def entry_of(listed: Any) -> Entry:
    """An entry as JSON has it; ValueError or TypeError for what is none."""
    name, dtype, shape = listed
    if not (isinstance(name, str) and isinstance(dtype, str)):
        raise ValueError("the name or the type of an array is not a text")
    if not all(type(length) is int and 0 <= length < 2**32 for length in shape):
        raise ValueError(f"an array cannot have the shape {str(shape)[:80]}")
    return name, dtype, tuple(shape)


@dataclass(frozen=True)
class Template:
    """The arrays of a record without their values. Trained floats are compressed; all others travel exactly.

    Exact are integers, booleans, float64, running statistics, and whatever else Flower can carry.
    """

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, record: ArrayRecord) -> Template:
        return cls(tuple((name, array.dtype, tuple(array.shape)) for name, array in record.items()))

    @cached_property
    def layout(self) -> Layout:
        """The arrays that are compressed."""
        return _compressed(self.entries)

    @cached_property
    def exact(self) -> tuple[str, ...]:
        """The names of the arrays that are not."""
        compressed = {tensor.name for tensor in self.layout.tensors}
        return tuple(name for name, _, _ in self.entries if name not in compressed)

    @cached_property
    def digest(self) -> int:
        return xxhash.xxh3_64_intdigest(self.to_json().encode())

    def to_json(self) -> str:
        return json.dumps(self.entries, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Template:
        try:
            return cls(tuple(map(entry_of, json.loads(text))))
        except (ValueError, TypeError, RecursionError) as error:
            raise WireError(f"the names and shapes of a model cannot be read: {error}") from None

    def check(self, record: Mapping[str, Array]) -> None:
        """Refuse a record of another model, with the array that differs."""
        for name in record:
            if name not in self._shapes:
                raise UpdateError(f"tensor {name!r} is not in the model; both sides need the same model")
        for name, shape in self._shapes.items():
            if name not in record:
                raise UpdateError(f"tensor {name!r} of the model is missing; both sides need the same model")
            if name not in self.exact and tuple(record[name].shape) != shape:
                raise UpdateError(
                    f"tensor {name!r} has shape {tuple(record[name].shape)}, the model has {shape}; "
                    "both sides need the same model"
                )

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for name, _, shape in self.entries}


@dataclass(frozen=True)
class _Typed:
    dtype: str
    shape: tuple[int, ...]


@lru_cache(8)
def _compressed(entries: tuple[Entry, ...]) -> Layout:
    floats = {name: _Typed(dtype, shape) for name, dtype, shape in entries if dtype in COMPRESSIBLE}
    trained = {tensor.name for tensor in Layout.of(floats).parameters}
    return Layout.of({name: typed for name, typed in floats.items() if name in trained})


def layout_of(record: ArrayRecord) -> Layout:
    """The layout of what is compressed of a record."""
    return Template.of(record).layout


def to_vector(record: Mapping[str, Array], layout: Layout) -> Vector:
    """The compressed arrays of a record as one flat vector; other arrays are passed over."""
    vector = np.empty(layout.size, np.float32)
    for tensor in layout.tensors:
        vector[tensor.span].reshape(tensor.shape)[...] = view(record[tensor.name])
    return vector


def to_record(template: Template, vector: Vector, exact: Mapping[str, Array]) -> ArrayRecord:
    """The arrays of a template: the compressed ones from a flat vector, the others as they are."""
    spans = {tensor.name: tensor for tensor in template.layout.tensors}
    arrays = {}
    for name, dtype, shape in template.entries:
        tensor = spans.get(name)
        arrays[name] = exact[name] if tensor is None else to_array(vector[tensor.span].reshape(shape).astype(dtype))
    return ArrayRecord(arrays)


def exact_of(record: Mapping[str, Array], names: Iterable[str]) -> dict[str, Array]:
    return {name: record[name] for name in names}


def view(array: Array) -> NDArray[Any]:
    """An array's values without a copy: read only."""
    if array.stype != NUMPY:
        raise UpdateError(f"an array of the kind {array.stype!r} has no values that we can read")
    data = array.data
    start = (
        10 + int.from_bytes(data[8:10], "little") if data[6:7] == b"\1" else 12 + int.from_bytes(data[8:12], "little")
    )
    shape, fortran, dtype = _npy_header(data[:start])
    if fortran or dtype.hasobject:
        return array.numpy()
    return np.frombuffer(data, dtype, offset=start, count=math.prod(shape)).reshape(shape)


@lru_cache(1024)
def _npy_header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """What stands before an array's values in numpy's format; the same for as long as a model is trained."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    return shape, fortran, dtype


def to_array(values: NDArray[Any]) -> Array:
    """`Array(values)`, with one copy instead of three."""
    values = np.ascontiguousarray(values).reshape(values.shape)
    stream = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(values.dtype), "fortran_order": False, "shape": values.shape}
    np.lib.format.write_array_header_1_0(stream, header)
    data = b"".join((stream.getvalue(), values.reshape(-1).view(np.uint8).data))
    return Array(str(values.dtype), values.shape, NUMPY, data)


def same(one: Array, other: Array) -> bool:
    """Whether two arrays are the same in every bit."""
    return (one.dtype, one.shape, one.stype, one.data) == (other.dtype, other.shape, other.stype, other.data)


def array_digest(array: Array) -> int:
    return xxhash.xxh3_64_intdigest(array.data, xxhash.xxh3_64_intdigest(f"{array.dtype}{array.shape}".encode()))


def cast(arrays: ArrayRecord, template: Template) -> ArrayRecord:
    """The same arrays in the types of a template: integers are rounded, never cut. Arrays it does not know stay."""
    wanted = {name: dtype for name, dtype, _ in template.entries}
    return ArrayRecord({name: _cast(array, wanted.get(name, array.dtype)) for name, array in arrays.items()})


def size(record: ArrayRecord) -> int:
    """The bytes of a record's arrays."""
    return sum(len(array.data) for array in record.values())


def only_arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """The one record of arrays in a message, and its key."""
    records = content.array_records
    if len(records) != 1:
        raise WireError(f"a message for training must hold one ArrayRecord, the model; this one holds {len(records)}")
    return next(iter(records.items()))


def examples(content: RecordDict) -> float:
    """The weight that the app says its reply has, as Flower reads it: examples, or any number; 1 where it says none."""
    for record in content.metric_records.values():
        value = record.get(EXAMPLES)
        if isinstance(value, int | float):
            if not 0 <= value < float("inf"):
                raise WireError(f"{EXAMPLES} is {value}; it must be a number from 0 on")
            return value
    return 1


def pack_arrays(arrays: Mapping[str, Array]) -> bytes:
    """Arrays with their names and types, as bytes."""
    about = json.dumps([(n, a.dtype, a.shape, a.stype, len(a.data)) for n, a in arrays.items()]).encode()
    return b"".join((struct.pack("<I", len(about)), about, *(array.data for array in arrays.values())))


def unpack_arrays(data: bytes) -> dict[str, Array]:
    """What `pack_arrays` packed."""
    arrays = {}
    try:
        (length,) = struct.unpack_from("<I", data)
        at = 4 + length
        for name, dtype, shape, stype, count in json.loads(data[4:at]):
            if count < 0 or at + count > len(data):
                raise ValueError("cut")
            arrays[str(name)] = Array(dtype, tuple(shape), stype, bytes(data[at : at + count]))
            at += count
    except (struct.error, ValueError, TypeError, RecursionError) as error:
        raise WireError(f"packed arrays cannot be read: {error}") from None
    if at != len(data):
        raise WireError("packed arrays were cut on their way")
    return arrays


def _cast(array: Array, dtype: str) -> Array:
    if array.dtype == dtype:
        return array
    values, wanted = array.numpy(), np.dtype(dtype)
    if wanted.kind == "b":
        values = np.rint(values)
    elif wanted.kind in "iu":
        limits = np.iinfo(wanted)
        rounded = np.rint(values)
        low, high = rounded <= limits.min, rounded >= float(limits.max)
        whole = np.where(low | high, 0, rounded).astype(wanted)
        return to_array(np.where(low, limits.min, np.where(high, limits.max, whole)).astype(wanted))
    return to_array(np.asarray(values.astype(wanted)))
