"""The layers of a message one after the other, each in pieces: places, then values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedsparq.compress.payload import Everything, Listed, Payload, Positions, Seeded, Selection, Values
from fedsparq.errors import WireError
from fedsparq.layout import Layout, Tensor
from fedsparq.wire.index import Index, read_index, write_index
from fedsparq.wire.streams import Reader, Writer
from fedsparq.wire.values import Kind, join, read_head, read_values, write_head, write_values

PIECE = 1 << 20
"""A layer is cut into pieces of at most this many coordinates."""


class Part(NamedTuple):
    """What a run of bytes was for: the head of a layer, one of its pieces, or all layers at once."""

    layer: str
    kept: int = 0
    coding: str = ""
    index_bytes: int = 0
    value_bytes: int = 0


@dataclass(frozen=True)
class Body:
    """What was read between the header and the exact part of a message, and where its bytes went."""

    selection: Selection
    values: tuple[Values, ...]
    parts: tuple[Part, ...]


def write_layers(writer: Writer, payload: Payload) -> None:
    listed = isinstance(payload.selection, Listed)
    seeded = isinstance(payload.selection, Seeded)
    places = None if isinstance(payload.selection, Everything) else payload.positions
    done = 0
    for tensor, values in zip(payload.layout.parameters, payload.values, strict=True):
        head, first = write_head(writer, values), done
        for start, size in _pieces(tensor):
            count = size if places is None else int(np.searchsorted(places[done:], np.uint32(start + size)))
            if listed and places is not None:
                write_index(writer, places[done : done + count], start, size)
            else:
                writer.byte(Index.SEEDED if seeded else Index.ALL)
            if count:
                write_values(writer, values, head, slice(done - first, done - first + count))
            done += count


def read_layers(reader: Reader, layout: Layout, seeded: Seeded | None) -> Body:
    drawn = seeded.positions() if seeded else None
    places: list[Positions | range] = []
    values: list[Values] = []
    parts: list[Part] = []
    sent = 0
    for tensor in layout.parameters:
        at, first, before = reader.at, len(places), sent
        head = read_head(reader, tensor)
        parts.append(Part(tensor.name, value_bytes=reader.at - at))
        pieces = []
        for start, size in _pieces(tensor):
            at = reader.at
            kind, here = read_index(reader, start, size)
            if (kind is Index.SEEDED) != (drawn is not None):
                raise WireError(f"layer {tensor.name!r}: seeded and listed positions are mixed in one message")
            if head.kind is Kind.ROTATED and kind is not Index.ALL:
                raise WireError(f"layer {tensor.name!r} was rotated, but not all of it is sent")
            if drawn is not None:
                here = drawn[sent : sent + int(np.searchsorted(drawn[sent:], np.uint32(start + size)))]
            places.append(range(start, start + size) if kind is Index.ALL else here)
            count, index_end = len(places[-1]), reader.at
            if count:
                pieces.append(read_values(reader, head, count, tensor.name))
            parts.append(Part(tensor.name, count, kind.name.lower(), index_end - at, reader.at - index_end))
            sent += count
        own = _listed(places[first:]) if head.kind is Kind.BUCKETS else np.empty(0, np.uint32)
        values.append(join(head, pieces, sent - before, own, tensor.offset))
    listed = Listed(_listed(places)) if not seeded and sent < layout.size else None
    return Body(seeded or listed or Everything(layout.size), tuple(values), tuple(parts))


def _pieces(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """(first coordinate, size) of each piece of a layer."""
    end = tensor.offset + tensor.size
    for start in range(tensor.offset, end, PIECE):
        yield start, min(PIECE, end - start)


def _listed(places: list[Positions | range]) -> Positions:
    """The places of pieces one by one, also of those that are sent as a whole."""
    arrays = (np.arange(p.start, p.stop, dtype=np.uint32) if isinstance(p, range) else p for p in places)
    return np.concatenate([np.empty(0, np.uint32), *arrays])
