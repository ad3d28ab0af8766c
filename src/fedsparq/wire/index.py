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
"""Coordinates of the whole vector, rising."""

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


def write_index(writer: Writer, places: Places, start: int, size: int) -> None:
    """Say which places of the piece from `start` on, `size` coordinates long, are sent."""
    if places.size in (0, size):
        writer.byte(Index.ALL if places.size else Index.EMPTY)
        return
    options = []
    if places.size >= _BITMAP_FROM * size:
        options.append(_bitmap(writer, places, start, size))
    if places.size <= _GAPS_TO * size:
        options.append(_gaps(writer, places, start))
    if places.size <= max(_RICE_TO * size, _FEW):
        options.append(_rice(places, start, size))
    kind, head, body = min(options, key=lambda option: len(option[1]) + len(option[2]))
    writer.byte(kind)
    writer.varint(places.size)
    writer.raw(head)
    writer.raw(body)


def read_index(reader: Reader, start: int, size: int) -> tuple[Index, Places]:
    """How the places of a piece are said, and those that are listed: none where all or seeded ones are meant."""
    code = reader.byte()
    if code not in Index._value2member_map_:
        raise WireError(f"index coding {code} is not one of FSQ1's; the message is damaged or of a later version")
    kind = Index(code)
    if kind in (Index.EMPTY, Index.ALL, Index.SEEDED):
        return kind, np.empty(0, np.uint32)
    count = reader.varint(size - 1)
    if count == 0:
        raise WireError("a piece lists no positions; it should say that it is empty")
    places = np.empty(count, np.uint32)
    match kind:
        case Index.BITMAP:
            data, _ = reader.stream((size + 7) // 8, (size + 7) // 8)
            sound = kernels.bitmap_to_places(_words(data), start, size, places)
        case Index.GAPS:
            length = reader.varint(3 * count)
            data, _ = reader.stream(length, length)
            sound = kernels.varints_to_places(data, start, size, places)
        case Index.RICE:
            k = reader.byte()
            if k > _MAX_RICE:
                raise WireError(f"Rice parameter {k} is out of range; it can be {_MAX_RICE} at most")
            sound = kernels.rice_decode(reader.rest(), k, start, size, places)
            reader.raw(max(sound, 0))
    if sound < 0:
        raise WireError(f"the positions of a piece are not {count:,} rising places below {size:,}")
    return kind, places


Option = tuple[Index, bytes, "bytes | Bytes"]
"""A way to say the places: its name, and what follows the count in two parts."""


def _bitmap(writer: Writer, places: Places, start: int, size: int) -> Option:
    words = np.empty((size + 63) // 64, np.uint64)
    kernels.places_to_bitmap(places, start, words)
    data = words.astype("<u8", copy=False).view(np.uint8)[: (size + 7) // 8]
    return Index.BITMAP, *writer.squeezed(data)


def _words(data: Bytes) -> NDArray[np.uint64]:
    padded = np.zeros((data.size + 7) // 8 * 8, np.uint8)
    padded[: data.size] = data
    return padded.view("<u8").astype(np.uint64, copy=False)


def _gaps(writer: Writer, places: Places, start: int) -> Option:
    data = np.empty(3 * places.size, np.uint8)
    data = data[: kernels.gaps_to_varints(places, start, data)]
    head, body = writer.squeezed(data)
    return Index.GAPS, varint(data.size) + head, body


def _rice(places: Places, start: int, size: int) -> Option:
    mean_gap = max((size - places.size) / (places.size + 1), 1e-9)
    guess = max(0, round(math.log2(mean_gap * math.log(2) + 1e-9)))
    k = int(kernels.rice_parameter(places, start, max(0, guess - 1), min(_MAX_RICE, guess + 1)))
    bits = int(kernels.rice_bits(places, start, k))
    out = np.empty((bits + 7) // 8, np.uint8)
    kernels.rice_encode(places, start, k, out)
    return Index.RICE, k.to_bytes(1), out
