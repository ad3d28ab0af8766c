"""What our plug for Flower reads of others: headers of messages to nodes, models with their names, arrays beside."""

from __future__ import annotations

import struct
import zlib
from functools import cache

import numpy as np
from forging import sum_holds, with_sum
from sound_messages import blobs, broadcasts

from fedsparq.errors import WireError
from fedsparq.federate.messages import Broadcast
from fedsparq.flower.blobs import Beside, pack, unpack
from fedsparq.flower.header import Header
from fedsparq.flower.records import Template, to_array

LIMIT = 1 << 16
_START = struct.calcsize("<BQQI")


@cache
def headers() -> tuple[bytes, ...]:
    made = [Broadcast.decode(message) for message in broadcasts()]
    omitted = ((0, ("w", "float32", (20, 9))), (2, ("b", "int64", ())))
    return tuple(Header(7, each, "hospitals", 3, 2, 2**60, omitted).encode() for each in made)


def forge_header(data: bytes) -> bytes:
    """The version, and the checksum of the broadcast in it."""
    (length,) = struct.unpack_from("<I", data.ljust(_START, b"\0"), 17)
    end = min(_START + length, len(data))
    return b"\4" + data[1:end] + with_sum(b"FSQB" + data[end + 4 : -4])


def header_holds(data: bytes) -> bool:
    (length,) = struct.unpack_from("<I", data.ljust(_START, b"\0"), 17)
    return data[:1] == b"\4" and sum_holds(data[_START + length :], b"FSQB")


def check_header(data: bytes) -> bool:
    try:
        header = Header.decode(data)
    except WireError:
        return False
    assert isinstance(header.federation, str)
    assert all(isinstance(number, int) for number in (header.session, header.version, header.base, header.digest))
    return True


def _packed() -> tuple[bytes, bytes]:
    template = Template((("w", "float32", (20, 9)), ("b", "int64", ())))
    beside = Beside({"steps": to_array(np.arange(9)), "b": to_array(np.ones(3, np.float32))}, (("w", "b"),))
    return pack(template, blobs()[:2]), beside.encode()


@cache
def models() -> tuple[bytes, ...]:
    """With their names inflated: forging deflates them again."""
    data = _packed()[0]
    (length,) = struct.unpack_from("<I", data)
    return (zlib.decompress(data[4 : 4 + length]) + b"\0" + data[4 + length :],)


def forge_model(data: bytes) -> bytes:
    text, _, parts = data.partition(b"\0")
    squeezed = zlib.compress(text, 1)
    return struct.pack("<I", len(squeezed)) + squeezed + parts


def model_holds(data: bytes) -> bool:
    (length,) = struct.unpack_from("<I", data.ljust(4, b"\0"))
    return beside_holds(data[4 : 4 + length])


def check_model(data: bytes) -> bool:
    try:
        unpack(data)
    except WireError:
        return False
    return True


@cache
def besides() -> tuple[bytes, ...]:
    return (zlib.decompress(_packed()[1]),)


def forge_beside(data: bytes) -> bytes:
    return zlib.compress(data, 1)


def beside_holds(data: bytes) -> bool:
    """zlib has a checksum of its own."""
    try:
        zlib.decompress(data)
    except zlib.error:
        return False
    return True


def check_beside(data: bytes) -> bool:
    try:
        beside = Beside.decode(data, LIMIT)
    except WireError:
        return False
    assert sum(len(array.data) for array in beside.arrays.values()) <= LIMIT
    return True
