"""Where the sent coordinates of one piece are: of all ways to say it, the shortest."""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.wire import kernels
from fedsparq.wire.streams import Bytes, Reader, Writer, varint

Places = NDArray[np.uint32]
"""Coordinates within a piece, rising."""

_BITMAP_FROM = 0.15
_GAPS_TO = 0.30
_RICE_TO = 0.04
_FEW = 4096
_MAX_RICE = 20


class Index(IntEnum):
    EMPTY = 0
    ALL = 1
    BITMAP = 2
    GAPS = 3
    RICE = 4
    SEEDED = 5


def write_index(writer: Writer, places: Places, size: int) -> None:
    """Say which `places` of a piece of `size` coordinates are sent."""
    if places.size in (0, size):
        writer.byte(Index.ALL if places.size else Index.EMPTY)
        return
    options = []
    if places.size >= _BITMAP_FROM * size:
        options.append(_bitmap(writer, places, size))
    if places.size <= _GAPS_TO * size:
        options.append(_gaps(writer, places))
    if places.size <= max(_RICE_TO * size, _FEW):
        options.append(_rice(places, size))
    kind, body = min(options, key=lambda option: len(option[1]))
    writer.byte(kind)
    writer.varint(places.size)
    writer.raw(body)


def read_index(reader: Reader, size: int) -> tuple[Index, Places | None]:
    """What `write_index` said; no places where all or seeded ones are meant."""
    code = reader.byte()
    if code not in Index._value2member_map_:
        raise WireError(f"index coding {code} is not one of FSQ1's; the message is damaged or of a later version")
    kind = Index(code)
    if kind in (Index.ALL, Index.SEEDED):
        return kind, None
    if kind is Index.EMPTY:
        return kind, np.empty(0, np.uint32)
    count = reader.varint(size - 1)
    if count == 0:
        raise WireError("a piece lists no positions; it should say that it is empty")
    places = np.empty(count, np.uint32)
    match kind:
        case Index.BITMAP:
            data, _ = reader.stream((size + 7) // 8, (size + 7) // 8)
            sound = kernels.bitmap_to_places(_words(data), size, places)
        case Index.GAPS:
            length = reader.varint(3 * places.size)
            data, _ = reader.stream(length, length)
            sound = kernels.varints_to_places(data, size, places)
        case Index.RICE:
            k = reader.byte()
            if k > _MAX_RICE:
                raise WireError(f"Rice parameter {k} is out of range; it can be {_MAX_RICE} at most")
            sound = kernels.rice_decode(reader.rest(), k, size, places)
            reader.raw(max(sound, 0))
    if sound < 0:
        raise WireError(f"the positions of a piece are not {places.size:,} rising places below {size:,}")
    return kind, places


def _bitmap(writer: Writer, places: Places, size: int) -> tuple[Index, bytes]:
    words = np.empty((size + 63) // 64, np.uint64)
    kernels.places_to_bitmap(places, words)
    data = words.astype("<u8", copy=False).view(np.uint8)[: (size + 7) // 8]
    return Index.BITMAP, _stream(data, writer.squeeze(data))


def _words(data: Bytes) -> NDArray[np.uint64]:
    padded = np.zeros((data.size + 7) // 8 * 8, np.uint8)
    padded[: data.size] = data
    return padded.view("<u8").astype(np.uint64, copy=False)


def _gaps(writer: Writer, places: Places) -> tuple[Index, bytes]:
    data = np.empty(3 * places.size, np.uint8)
    data = data[: kernels.gaps_to_varints(places, data)]
    return Index.GAPS, varint(data.size) + _stream(data, writer.squeeze(data))


def _rice(places: Places, size: int) -> tuple[Index, bytes]:
    mean_gap = max((size - places.size) / (places.size + 1), 1e-9)
    guess = max(0, round(math.log2(mean_gap * math.log(2) + 1e-9)))
    k = min(range(max(0, guess - 1), min(_MAX_RICE, guess + 1) + 1), key=lambda k: kernels.rice_bits(places, k))
    out = np.empty((kernels.rice_bits(places, k) + 7) // 8, np.uint8)
    kernels.rice_encode(places, k, out)
    return Index.RICE, k.to_bytes(1) + out.tobytes()


def _stream(data: Bytes, frame: bytes | None) -> bytes:
    return varint(len(frame)) + frame if frame else varint(0) + data.tobytes()
