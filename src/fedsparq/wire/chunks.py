"""The layers of a message one after the other, each in chunks: indices, then values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.layout import Layout, Tensor
from fedsparq.payload import Dense, Indices, Payload, Reader, Seeded, Selection, Sparse, Values, Writer
from fedsparq.payload.values import kind_of
from fedsparq.threads import together
from fedsparq.wire.index import Arena, IndexCoding, read_index, skip_index, write_index

CHUNK = 1 << 20
"""A layer is cut into chunks of at most this many coordinates."""
_STRETCH = 1 << 18
"""Neighbouring chunks of so many coordinates are written by one thread in a row."""
_ALONE = 1 << 14
"""A chunk of so many coordinates is worth to be read beside others."""
BYTES_SENT = 2
"""About what a coordinate takes that is sent: tells how many there are before they are read."""
_NOTHING = np.empty(0, np.uint8)


class Part(NamedTuple):
    """What a run of bytes was for: the header of a layer, one of its chunks, or (no layer) what `coding` says."""

    layer: str | None
    kept: int = 0
    coding: str = ""
    index_bytes: int = 0
    value_bytes: int = 0


Body = tuple[Selection, tuple[Values, ...]]
"""What stands between the header and the buffers of a message."""


class Chunk(NamedTuple):
    """Where a chunk stands: its first coordinate and its size; whether it begins its layer."""

    tensor: Tensor
    start: int
    size: int

    @property
    def is_first(self) -> bool:
        return self.start == self.tensor.offset


def write_layers(writer: Writer, payload: Payload, threads: int = 1) -> None:
    """All layers, one after the other; several threads write stretches of them, which are then put together."""
    payload.check_indices()
    indices = None if isinstance(payload.selection, Dense) else payload.indices
    ends = None if indices is None else _chunk_ends(indices, payload.layout)
    stretches, done, number = [list[_Written]()], 0, 0
    for tensor, values in zip(payload.layout.parameters, payload.values, strict=True):
        first, chunks = done, list(_chunks(tensor))
        for start, size in chunks or [(tensor.offset, 0)]:
            count = size if ends is None or not chunks else ends[number] - done
            number += bool(chunks)
            stretches[-1].append(_Written(Chunk(tensor, start, size), values, done, done - first, count))
            done += count
            if sum(own.chunk.size for own in stretches[-1]) >= _STRETCH:
                stretches.append([])
        sent = done - first
        if sent != len(values):
            raise WireError(f"layer {tensor.name!r}: the payload has {len(values):,} values for {sent:,} indices")
    seeded = isinstance(payload.selection, Seeded)

    def write(stretch: list[_Written], own: Writer | None = None) -> Writer:
        own = Writer() if own is None else own
        for each in stretch:
            each.write(own, indices, seeded)
        return own

    if threads == 1:
        for stretch in stretches:
            write(stretch, writer)
    else:
        for written in together(write, stretches, threads, lambda stretch: sum(own.chunk.size for own in stretch)):
            writer.add(written)


class _Written(NamedTuple):
    """A chunk to be written: `sent` values of its layer from `inside` on, whose indices begin at `done` of all."""

    chunk: Chunk
    values: Values
    done: int
    inside: int
    sent: int

    def write(self, writer: Writer, indices: Indices | None, seeded: bool) -> None:
        if self.chunk.is_first:
            self.values.write_header(writer)
        if not self.chunk.size:
            return
        if indices is None:
            writer.byte(IndexCoding.ALL)
        elif seeded:
            writer.byte(IndexCoding.SEEDED)
        else:
            write_index(writer, indices[self.done : self.done + self.sent], self.chunk.start, self.chunk.size)
        if self.sent:
            self.values.write(writer, slice(self.inside, self.inside + self.sent))


def read_layers(
    reader: Reader, layout: Layout, seeded: Seeded | None, parts: list[Part] | None, threads: int = 1
) -> Body:
    """Undo `write_layers`; what each byte was for is added to `parts`, where somebody wants to know."""
    drawn = seeded.indices if seeded else None
    ends = None if drawn is None else iter(_chunk_ends(drawn, layout))
    indices: list[Indices | range] = []
    values: list[Values] = []
    arena, ahead = Arena(reader.left // BYTES_SENT), dict[int, _Found]()
    if threads > 1 and seeded is None and parts is None:
        arena, ahead = _read_ahead(reader, layout, threads)
    sent = 0
    for tensor in layout.parameters:
        at, first, before = reader.at, len(indices), sent
        code = reader.byte()
        kind = kind_of(code, tensor.name)
        header = kind.read_header(reader, code, tensor)
        if parts is not None:
            parts.append(Part(tensor.name, value_bytes=reader.at - at))
        data = []
        for start, size in _chunks(tensor):
            at = reader.at
            found = ahead.get(at)
            if found:
                coding, here = found.coding, arena.take(found.listed)
            else:
                coding, here = read_index(reader, start, size, arena)
            if (coding is IndexCoding.SEEDED) != (drawn is not None):
                raise WireError(f"layer {tensor.name!r}: seeded and listed indices are mixed in one message")
            if kind.needs_every_coordinate and coding is not IndexCoding.ALL:
                raise WireError(f"layer {tensor.name!r}: its kind of value needs every coordinate, not all are sent")
            if drawn is not None and ends is not None:
                here = drawn[sent : next(ends)]
            indices.append(range(start, start + size) if coding is IndexCoding.ALL else here)
            count, index_end = len(indices[-1]), reader.at
            if found:
                reader.at = found.end
            if count:
                data.append(found.data if found else kind.read(reader, header, count, tensor))
            if parts is not None:
                parts.append(Part(tensor.name, count, coding.name.lower(), index_end - at, reader.at - index_end))
            sent += count
        joined = np.concatenate(data or [_NOTHING]) if len(data) != 1 else data[0]
        values.append(kind.join(header, joined, partial(_listed, indices[first:], tensor.offset), tensor))
        found_values, expected = len(values[-1]), sent - before
        if found_values != expected:
            raise WireError(f"layer {tensor.name!r}: {found_values:,} values were read for {expected:,} indices")
    if seeded or sent == layout.size:
        return seeded or Dense(layout.size), tuple(values)
    return Sparse(arena.taken if arena.taken.size == sent else _listed(indices)), tuple(values)


class _Found(NamedTuple):
    """A chunk that was read ahead, and how many indices were listed in it."""

    begin: int
    coding: IndexCoding
    listed: int
    data: NDArray[Any]
    end: int


class _Place(NamedTuple):
    """Where a chunk stands in a message, and where among all indices that are listed those of the chunk belong."""

    reader: Reader
    chunk: Chunk
    kind: type[Values]
    header: Any
    listed: slice


def _read_ahead(reader: Reader, layout: Layout, threads: int) -> tuple[Arena, dict[int, _Found]]:
    """Large chunks by the place where they begin, read side by side, as far as their ends can be told beforehand.

    What does not fit is left to who reads in order, and so are errors about it. The arena has the indices of what was
    read, each chunk's where reading in order would put them.
    """
    places, walker, listed = list[_Place](), reader.from_here(), 0
    try:
        for tensor in layout.parameters:
            code = walker.byte()
            kind = kind_of(code, tensor.name)
            header = kind.read_header(walker, code, tensor)
            for start, size in _chunks(tensor):
                here = walker.from_here()
                count = skip_index(walker, start, size)
                if count is None:
                    walker.at = here.at
                    count = read_index(walker, start, size)[1].size or None
                if count is None or (count and not kind.skip(walker, header, count)):
                    raise _EndUnknownError
                before, listed = listed, listed + count % size  # none are listed where all are sent
                if size >= _ALONE:
                    places.append(_Place(here, Chunk(tensor, start, size), kind, header, slice(before, listed)))
    except (_EndUnknownError, WireError):
        pass
    arena = Arena(listed)
    found = together(partial(_read_chunk, arena), places, threads, size=lambda place: place.chunk.size)
    return arena, {own.begin: own for own in found}


class _EndUnknownError(Exception):
    """A chunk whose end is not known before it is read."""


def _read_chunk(arena: Arena, place: _Place) -> _Found:
    reader, chunk, kind, header, listed = place
    begin = reader.at
    coding, indices = read_index(reader, chunk.start, chunk.size, arena.part(listed))
    count = chunk.size if coding is IndexCoding.ALL else indices.size
    data = kind.read(reader, header, count, chunk.tensor) if count else _NOTHING
    return _Found(begin, coding, indices.size, data, reader.at)


def _chunks(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """(first coordinate, size) of each chunk of a layer."""
    end = tensor.offset + tensor.size
    for start in range(tensor.offset, end, CHUNK):
        yield start, min(CHUNK, end - start)


def _chunk_ends(indices: Indices, layout: Layout) -> list[int]:
    """Where among rising indices those of each chunk end."""
    ends = [start + size for tensor in layout.parameters for start, size in _chunks(tensor)]
    return [int(end) for end in np.searchsorted(indices, np.array(ends, np.uint32))]


def _listed(indices: list[Indices | range], offset: int = 0) -> Indices:
    """The indices of chunks one by one, also of those that are sent as a whole, counted from `offset`."""
    arrays = (np.arange(i.start, i.stop, dtype=np.uint32) if isinstance(i, range) else i for i in indices)
    listed = np.concatenate([np.empty(0, np.uint32), *arrays])
    return listed - np.uint32(offset) if offset else listed
