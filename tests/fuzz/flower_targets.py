"""What a transport with named arrays reads of others: broadcasts with names, exact arrays, single arrays."""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import cache

import numpy as np
from flwr.app import Array
from forging import frame_holds, reframed
from sound_messages import broadcasts

from fedsparq import Model
from fedsparq.errors import FedSparQError, WireError
from fedsparq.federate.client import Client, Evaluate
from fedsparq.federate.exact import ArraySpec, Beside
from fedsparq.federate.messages import Broadcast
from fedsparq.federate.serialized import NUMPY, ExactArray, to_array, view
from fedsparq.federate.store import MemoryStore
from fedsparq.methods import resolver

LIMIT = 1 << 16
SPEC = ArraySpec((("w", "float32", (20, 9)), ("b", "int64", ())))
BESIDE = Beside({"steps": to_array(np.arange(9)), "b": to_array(np.array(3))}, (("w", "b"),))


@cache
def headers() -> tuple[bytes, ...]:
    """Requests to evaluate, with the model's names and exact arrays."""
    first = Broadcast.decode(broadcasts()[1])
    whole = (Model(np.ones(180, np.float32)).encode(SPEC.layout),)
    beside = Beside({"b": to_array(np.array(3))}, (), SPEC)
    named = replace(
        first, federation="hospitals", session=7, version=3, numbering=9, evaluate=True, hold=True, digest=0
    )
    sent = replace(named, layout_digest=SPEC.layout.digest, digest=0, blobs=whole, beside=beside)
    return tuple(each.encode() for each in (sent, replace(sent, federation="")))


def forge_header(data: bytes) -> bytes:
    return reframed(data, "B")


def header_holds(data: bytes) -> bool:
    return frame_holds(data, "B")


def check_header(data: bytes) -> bool:
    client = Client(0, None, None, MemoryStore(), resolver())
    try:
        opened = client.open(Broadcast.decode(data))
    except FedSparQError:
        return False
    if not isinstance(opened, Evaluate):
        return False
    for array in opened.named.arrays().values():
        assert isinstance(array.data, bytes)
    return True


@cache
def besides() -> tuple[bytes, ...]:
    return tuple(zlib.decompress(each.encode()) for each in (BESIDE, BESIDE._replace(spec=SPEC)))


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


@cache
def arrays() -> tuple[bytes, ...]:
    """Arrays in numpy's format, as Flower carries them."""
    made = [np.arange(9), np.ones((3, 4), np.float32), np.asfortranarray(np.ones((3, 4))), np.array(True)]
    return tuple(Array(each).data for each in made)


def forge_array(data: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + data[8:]


def array_holds(data: bytes) -> bool:
    return data[:8] == b"\x93NUMPY\x01\x00"


def check_array(data: bytes) -> bool:
    taken = False
    for dtype, shape in (("int64", (9,)), ("float32", (3, 4)), ("float64", (3, 4)), ("bool", ())):
        try:
            values = view(ExactArray(dtype, shape, NUMPY, data))
        except FedSparQError:
            continue
        assert values.shape == shape
        assert values.nbytes <= len(data)
        taken = True
    return taken
