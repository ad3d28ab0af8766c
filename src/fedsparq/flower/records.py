"""Flower's records and ours: named arrays to one flat vector and back, and bytes as a single array."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedsparq.errors import UpdateError, WireError
from fedsparq.federate.model import Model
from fedsparq.layout import Exact, Layout, Tensor

STYPE = "fedsparq/1"
"""How an array says that its data is ours: Flower carries it untouched."""

_NAME = "fedsparq"
_MAX_LAYOUT = 1 << 26


def layout_of(arrays: ArrayRecord) -> Layout:
    """The layout of named arrays; their values are not looked at."""
    return Layout.of(dict(arrays.items()))


def to_model(arrays: ArrayRecord, layout: Layout) -> Model:
    """The flat model of named arrays."""
    _check_fit(arrays, layout)
    vector = np.empty(layout.size, np.float32)
    _fill(vector, layout.parameters, arrays)
    if not (layout.buffers or layout.counters):
        return Model(vector)
    exact = Exact(np.empty(layout.buffer_size, np.float32), np.empty(layout.counter_size, np.int64))
    _fill(exact.buffers, layout.buffers, arrays)
    _fill(exact.counters, layout.counters, arrays)
    return Model(vector, exact)


def to_arrays(model: Model, layout: Layout) -> ArrayRecord:
    """The named arrays of a flat model, in their own types and order."""
    exact = model.exact or _no_exact()
    return ArrayRecord({t.name: Array(tensor_values(t, model.vector, exact)) for t in layout.tensors})


def tensor_values(tensor: Tensor, vector: NDArray[np.float32], exact: Exact) -> NDArray[Any]:
    """One tensor's values, in its own shape and type."""
    flat: dict[str, NDArray[Any]] = {"parameter": vector, "buffer": exact.buffers, "counter": exact.counters}
    return np.ascontiguousarray(flat[tensor.role][tensor.span].astype(tensor.dtype, copy=False)).reshape(tensor.shape)


def cast(arrays: ArrayRecord, layout: Layout) -> ArrayRecord:
    """The same arrays in the types of a layout: integers are rounded, never cut. Arrays it does not know stay."""
    wanted = {t.name: t.dtype for t in layout.tensors}
    return ArrayRecord({name: _cast(array, wanted.get(name, array.dtype)) for name, array in arrays.items()})


def wrap(data: bytes) -> ArrayRecord:
    """Bytes as a record of one array."""
    return ArrayRecord({_NAME: Array("uint8", (len(data),), STYPE, data)})


def unwrap(record: ArrayRecord) -> bytes | None:
    """What `wrap` wrapped; None for a record of plain arrays."""
    array = record.get(_NAME)
    return array.data if array is not None and array.stype == STYPE else None


def size(record: ArrayRecord) -> int:
    """The bytes of a record's arrays."""
    return sum(len(array.data) for array in record.values())


def pack(layout: Layout, blobs: Sequence[bytes]) -> bytes:
    """A layout and the parts of a model, as one blob: a client can read it without having seen the model before."""
    text = zlib.compress(layout.to_json().encode(), 9)
    parts = [struct.pack("<I", len(text)), text]
    for blob in blobs:
        parts += [struct.pack("<Q", len(blob)), blob]
    return b"".join(parts)


def unpack(data: bytes) -> tuple[Layout, tuple[bytes, ...]]:
    """What `pack` packed."""
    view, blobs = memoryview(data), []
    try:
        (length,) = struct.unpack_from("<I", view)
        inflater = zlib.decompressobj()
        text = inflater.decompress(view[4 : 4 + length], _MAX_LAYOUT)
        at = 4 + length
        while at < len(view):
            (length,) = struct.unpack_from("<Q", view, at)
            blobs.append(bytes(view[at + 8 : at + 8 + length]))
            at += 8 + length
    except (struct.error, zlib.error) as error:
        raise WireError(f"the packed model cannot be read: {error}") from None
    if at != len(view) or inflater.unconsumed_tail:
        raise WireError("the packed model was cut on its way")
    return Layout.from_json(text.decode()), tuple(blobs)


def _no_exact() -> Exact:
    return Exact(np.empty(0, np.float32), np.empty(0, np.int64))


def _check_fit(arrays: ArrayRecord, layout: Layout) -> None:
    for tensor in layout.tensors:
        array = arrays.get(tensor.name)
        if array is None:
            raise UpdateError(f"array {tensor.name!r} of the server's model is missing; both need the same model")
        if tuple(array.shape) != tensor.shape:
            raise UpdateError(
                f"array {tensor.name!r} has shape {tuple(array.shape)}, the server's model has {tensor.shape}; "
                "both need the same model"
            )
    if len(arrays) != len(layout.tensors):
        extra = next(name for name in arrays if name not in {t.name for t in layout.tensors})
        raise UpdateError(f"array {extra!r} is not in the server's model; both need the same model")


def _fill(flat: NDArray[np.generic], tensors: Sequence[Tensor], arrays: ArrayRecord) -> None:
    for tensor in tensors:
        flat[tensor.span] = arrays[tensor.name].numpy().reshape(-1)


def _cast(array: Array, dtype: str) -> Array:
    if array.dtype == dtype:
        return array
    values = array.numpy()
    if np.dtype(dtype).kind in "iub":
        values = np.rint(values)
    return Array(np.asarray(values.astype(dtype)))
