"""The layers of a message in sequence, each in chunks: indices, then values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fedsparq.errors import WireError
from fedsparq.layout import Layout, Tensor
from fedsparq.payload import Dense, Indices, Payload, Reader, Seeded, Selection, Sparse, Values, Writer
from fedsparq.payload.values import value_kind
from fedsparq.threads import imap
from fedsparq.wire.index import ALL, CODINGS, SEEDED, IndexBuffer, read_index, write_index

CHUNK = 1 << 20
"""A layer is cut into chunks of at most this many coordinates."""
_BYTES_SENT = 1.5
"""About the bytes of a coordinate that is sent: an estimate of their number before they are read."""


class Part(NamedTuple):
    """What a run of bytes was for: the header of a layer, one of its chunks, or (no layer) what `coding` says."""

    layer: str | None
    kept: int = 0
    coding: str = ""
    index_bytes: int = 0
    value_bytes: int = 0


Body = tuple[Selection, tuple[Values, ...]]
"""The part of a message between its header and its buffers."""


def write_layers(writer: Writer, payload: Payload, threads: int = 1) -> None:
    """Write all layers; several threads write chunks, which are joined in order."""
    payload.check_indices()
    steps = list[Callable[[Writer], None]]()
    done, ends = 0, None if isinstance(payload.selection, Dense) else iter(_chunk_ends(payload.indices, payload.layout))
    for tensor, values in zip(payload.layout.parameters, payload.values, strict=True):
        steps.append(values.write_header)
        first = done
        for start, size in _chunks(tensor):
            before, done = done, done + size if ends is None else next(ends)
            sent, part = slice(before, done), slice(before - first, done - first)
            steps.append(
                partial(_write_chunk, payload=payload, start=start, size=size, sent=sent, values=values, part=part)
            )
        if done - first != len(values):
            raise WireError(
                f"layer {tensor.name!r}: the payload has {len(values):,} values for {done - first:,} indices"
            )
    for written in imap(_written, steps, threads):
        writer.add(written)


def _written(step: Callable[[Writer], None]) -> Writer:
    writer = Writer()
    step(writer)
    return writer


def _write_chunk(
    writer: Writer, *, payload: Payload, start: int, size: int, sent: slice, values: Values, part: slice
) -> None:
    """Write one chunk: which of its coordinates are sent, then `part` of its layer's values."""
    if isinstance(payload.selection, Sparse):
        write_index(writer, payload.indices[sent], start, size)
    else:
        writer.byte(ALL if isinstance(payload.selection, Dense) else SEEDED)
    if part.start < part.stop:
        values.write(writer, part)


def read_layers(reader: Reader, layout: Layout, seeded: Seeded | None, parts: list[Part] | None) -> Body:
    """Undo `write_layers`; add what each byte is for to `parts`, if given."""
    drawn = None if seeded is None else _drawn(seeded, layout)
    buffer, sent = IndexBuffer(int(reader.left / _BYTES_SENT)), 0
    indices, values = list[Indices | range](), list[Values]()
    for tensor in layout.parameters:
        at, first, before = reader.at, len(indices), sent
        code = reader.byte()
        kind = value_kind(code, tensor.name)
        header = kind.read_header(reader, code, tensor)
        if parts is not None:
            parts.append(Part(tensor.name, value_bytes=reader.at - at))
        data = []
        for start, size in _chunks(tensor):
            at = reader.at
            coding, here = read_index(reader, start, size, buffer)
            if (coding == SEEDED) != (drawn is not None):
                raise WireError(f"layer {tensor.name!r}: seeded and listed indices are mixed in one message")
            if kind.needs_every_coordinate and coding != ALL:
                raise WireError(f"layer {tensor.name!r}: its kind of value needs every coordinate, not all are sent")
            if drawn is not None:
                here = next(drawn)
            indices.append(here)
            count, index_end = len(here), reader.at
            if count:
                data.append(kind.read(reader, header, count, tensor))
            if parts is not None:
                parts.append(Part(tensor.name, count, CODINGS[coding], index_end - at, reader.at - index_end))
            sent += count
        joined = data[0] if len(data) == 1 else np.concatenate(data or [np.empty(0, np.uint8)])
        layer = kind.join(header, joined, partial(_listed, indices[first:], tensor.offset), tensor)
        if len(layer) != sent - before:
            raise WireError(f"layer {tensor.name!r}: {len(layer):,} values were read for {sent - before:,} indices")
        values.append(layer)
    if seeded or sent == layout.size:
        return seeded or Dense(layout.size), tuple(values)
    return Sparse(buffer.taken if buffer.taken.size == sent else _listed(indices)), tuple(values)


def _drawn(seeded: Seeded, layout: Layout) -> Iterator[Indices]:
    """Return the seeded indices of each chunk."""
    indices = seeded.indices
    return (indices[first:last] for first, last in pairwise([0, *_chunk_ends(indices, layout)]))


def _chunks(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """Return (first coordinate, size) of each chunk of a layer."""
    end = tensor.offset + tensor.size
    for start in range(tensor.offset, end, CHUNK):
        yield start, min(CHUNK, end - start)


def _chunk_ends(indices: Indices, layout: Layout) -> list[int]:
    """Return where among increasing indices those of each chunk end."""
    ends = [start + size for tensor in layout.parameters for start, size in _chunks(tensor)]
    found: list[int] = np.searchsorted(indices, np.array(ends, np.uint32)).tolist()
    return found


def _listed(indices: list[Indices | range], offset: int = 0) -> Indices:
    """Return the indices of chunks, those of fully sent ones too, counted from `offset`."""
    arrays = (np.arange(i.start, i.stop, dtype=np.uint32) if isinstance(i, range) else i for i in indices)
    listed = np.concatenate([np.empty(0, np.uint32), *arrays])
    return listed - np.uint32(offset) if offset else listed
