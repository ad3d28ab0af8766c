"""How our bytes lie in a record of Flower's: a message, and beside it the arrays that travel exactly."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord

from fedsparq.errors import WireError
from fedsparq.flower.records import Template, pack_arrays, unpack_arrays
from fedsparq.flower.wrapped import STYPE, unwrap, wrap

_BESIDE = "fedsparq-beside"
_MAX_TEXT = 1 << 26

Ties = tuple[tuple[str, str], ...]
"""Pairs of arrays with one content: the first changes as the second does."""


@dataclass(frozen=True)
class Beside:
    """What travels with a compressed vector: arrays that changed, exactly, and which arrays are tied."""

    arrays: Mapping[str, Array]
    ties: Ties = ()

    def encode(self) -> bytes:
        if not self.arrays and not self.ties:
            return b""
        ties = json.dumps(self.ties).encode() if self.ties else b""
        return zlib.compress(struct.pack("<I", len(ties)) + ties + pack_arrays(self.arrays), 1)

    @classmethod
    def decode(cls, data: bytes, limit: int) -> Beside:
        """`limit`: so many bytes at most may come out of it."""
        if not data:
            return cls({})
        body = _inflated(data, limit)
        try:
            (length,) = struct.unpack_from("<I", body)
            ties = json.loads(body[4 : 4 + length]) if length else ()
            pairs = tuple((str(one), str(other)) for one, other in ties)
        except (struct.error, ValueError, TypeError, RecursionError) as error:
            raise WireError(f"the arrays beside an update cannot be read: {error}") from None
        return cls(unpack_arrays(body[4 + length :]), pairs)


def with_beside(message: bytes, beside: Beside) -> ArrayRecord:
    record, data = wrap(message), beside.encode()
    if data:
        record[_BESIDE] = Array("uint8", (len(data),), STYPE, data)
    return record


def read(record: ArrayRecord, limit: int = _MAX_TEXT) -> tuple[bytes, Beside] | None:
    """What `with_beside` wrote; None for a record of plain arrays."""
    message = unwrap(record)
    if message is None:
        return None
    array = record.get(_BESIDE)
    return message, Beside.decode(array.data if array is not None else b"", limit)


def pack(template: Template, blobs: Sequence[bytes]) -> bytes:
    """A template and the parts of a model, as one blob: a client can read it without having seen the model before."""
    text = zlib.compress(template.to_json().encode(), 9)
    parts = [struct.pack("<I", len(text)), text]
    for blob in blobs:
        parts += [struct.pack("<Q", len(blob)), blob]
    return b"".join(parts)


def unpack(data: bytes) -> tuple[Template, tuple[bytes, ...]]:
    """What `pack` packed."""
    view, blobs = memoryview(data), []
    try:
        (length,) = struct.unpack_from("<I", view)
        text = _inflated(bytes(view[4 : 4 + length]), _MAX_TEXT)
        at = 4 + length
        while at < len(view):
            (length,) = struct.unpack_from("<Q", view, at)
            blobs.append(bytes(view[at + 8 : at + 8 + length]))
            at += 8 + length
    except struct.error as error:
        raise WireError(f"the packed model cannot be read: {error}") from None
    if at != len(view):
        raise WireError("the packed model was cut on its way")
    return Template.from_json(text.decode(errors="replace")), tuple(blobs)


def _inflated(data: bytes, limit: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(data, limit)
    except zlib.error as error:
        raise WireError(f"compressed bytes cannot be read: {error}") from None
    if inflater.unconsumed_tail or not inflater.eof:
        raise WireError("compressed bytes were cut, or hold more than they may")
    return body
