"""Arrays as frameworks serialize them, in numpy's file format: read and written here, whoever they are from."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedsparq.errors import UpdateError

NUMPY = "numpy.ndarray"
"""The serialization type of an array whose data is in numpy's file format."""
_MAX_HEADER = 4096
_NPY = re.compile(
    rb"\x93NUMPY(\x01\0..|[\x02\x03]\0....)\{'descr': '(?P<descr>[<>|=][a-zA-Z]\d{0,9}(\[\w{1,9}\])?)', "
    rb"'fortran_order': (?P<fortran>False|True), 'shape': \((?P<shape>[\d, ]*)\), \} *\n",
    re.DOTALL,
)


class Serialized(Protocol):
    """An array as bytes; Flower's `Array` is one."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def stype(self) -> str: ...
    @property
    def data(self) -> bytes: ...


class ExactArray(NamedTuple):
    """A serialized array of our own."""

    dtype: str
    shape: tuple[int, ...]
    stype: str
    data: bytes


Record = Mapping[str, Serialized]


def view(array: Serialized) -> NDArray[Any]:
    """Return an array's values without a copy: read only. UpdateError unless its bytes are just what it says."""
    if array.stype != NUMPY:
        raise UpdateError(f"an array of the kind {str(array.stype)[:80]!r} has no values that we can read")
    data = array.data
    wide = data[6:7] != b"\1"
    start = (12 if wide else 10) + int.from_bytes(data[8:12] if wide else data[8:10], "little")
    if start > min(len(data), _MAX_HEADER):
        raise UpdateError(f"an array of {len(data)} bytes is not in numpy's format")
    shape, fortran, dtype = _npy_header(data[:start])
    if shape != tuple(array.shape) or not (str(dtype) == array.dtype or dtype.kind == "V"):
        raise UpdateError(f"an array says that it is {str(array.dtype)[:80]}{array.shape}, and is {dtype}{shape}")
    if len(data) - start != math.prod(shape) * dtype.itemsize:
        raise UpdateError(f"an array {dtype}{shape} has {len(data) - start} bytes")
    values = np.frombuffer(data, dtype, offset=start, count=math.prod(shape))
    return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)


@lru_cache(1024)
def _npy_header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read what stands before an array's values in numpy's format; the same for as long as a model is trained.

    Only what numpy itself writes for plain types is read, and numpy does not read it: no objects, no structures.
    """
    match = _NPY.fullmatch(data)
    try:
        if match is None or match["descr"][1:2] == b"O":
            raise ValueError("it has no header that numpy writes for numbers")
        shape = tuple(int(length) for length in match["shape"].split(b",") if length.strip())
        dtype = np.dtype(match["descr"].decode())
        if not dtype.itemsize or any(length >= 2**63 for length in shape):
            raise ValueError(f"there is no such array: {dtype}{shape}")
    except (ValueError, TypeError) as error:
        raise UpdateError(f"an array cannot be read: {str(error)[:200]}") from None
    return shape, match["fortran"] == b"True", dtype


def to_array(values: NDArray[Any]) -> ExactArray:
    """Serialize an array in numpy's format, with one copy."""
    values = np.ascontiguousarray(values).reshape(values.shape)
    stream = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(values.dtype), "fortran_order": False, "shape": values.shape}
    np.lib.format.write_array_header_1_0(stream, header)
    data = b"".join((stream.getvalue(), values.reshape(-1).view(np.uint8).data))
    return ExactArray(str(values.dtype), values.shape, NUMPY, data)


def same(one: Serialized, other: Serialized) -> bool:
    """Whether two arrays are the same in every bit."""
    return (one.dtype, tuple(one.shape), one.stype, one.data) == (
        *(other.dtype, tuple(other.shape), other.stype, other.data),
    )


def array_digest(array: Serialized) -> int:
    return xxhash.xxh3_64_intdigest(array.data, xxhash.xxh3_64_intdigest(f"{array.dtype}{tuple(array.shape)}".encode()))
