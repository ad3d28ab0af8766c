"""Payload to bytes and back: the FSQ1 message. FORMAT.md beside this file describes it for other languages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedsparq.compress.payload import Everything, Layer, Listed, Payload, Seeded, Selection, Values
from fedsparq.errors import WireError
from fedsparq.layout import Exact, Layout
from fedsparq.wire.index import Index, read_index, write_index
from fedsparq.wire.streams import Reader, Writer
from fedsparq.wire.values import join, read_head, read_values, write_head, write_values

MAGIC = b"FSQ1"
PIECE = 1 << 20
"""A layer is cut into pieces of at most this many coordinates."""

_SEEDED = 1
_EXACT = 2
_HEADER = len(MAGIC) + 1 + 8
_CHECKSUM = 8


def encode(payload: Payload) -> bytes:
    """The message that carries a payload."""
    layout, selection = payload.layout, payload.selection
    seeded = isinstance(selection, Seeded)
    writer = Writer()
    writer.raw(MAGIC)
    writer.byte(_SEEDED * seeded | _EXACT * (payload.exact is not None))
    writer.raw(layout.digest.to_bytes(8, "little"))
    if isinstance(selection, Seeded):
        writer.raw(selection.seed.to_bytes(8, "little") + selection.count.to_bytes(4, "little"))
    for layer in payload.layers():
        head = write_head(writer, layer.values)
        for start, size, part in _pieces(layer):
            if seeded:
                writer.byte(Index.SEEDED)
            else:
                write_index(writer, layer.positions[part] - np.uint32(start), size)
            if part.start < part.stop:
                write_values(writer, layer.values, head, part)
    if payload.exact is not None:
        _write_exact(writer, payload.exact, layout)
    body = writer.bytes()
    return body + xxhash.xxh3_64_intdigest(body).to_bytes(_CHECKSUM, "little")


def decode(blob: bytes | bytearray | memoryview, layout: Layout) -> Payload:
    """The payload that a message carries. Anything that is not exactly right raises WireError."""
    reader = Reader(_checked(_view(blob), layout))
    flags = reader.raw(_HEADER)[len(MAGIC)]
    seeded = _read_seed(reader, layout) if flags & _SEEDED else None
    drawn = seeded.positions() if seeded else None
    places: list[NDArray[np.uint32]] = []
    values: list[Values] = []
    whole = True
    for tensor in layout.parameters:
        head = read_head(reader, tensor.name)
        pieces = []
        for start in range(tensor.offset, tensor.offset + tensor.size, PIECE):
            size = min(PIECE, tensor.offset + tensor.size - start)
            kind, inside = read_index(reader, size)
            if (kind is Index.SEEDED) != (drawn is not None):
                raise WireError(f"layer {tensor.name!r}: seeded and listed positions are mixed in one message")
            if drawn is not None:
                here = drawn[slice(*np.searchsorted(drawn, [start, start + size]))]
            elif inside is None:
                here = np.arange(start, start + size, dtype=np.uint32)
            else:
                here = inside + np.uint32(start)
                whole = False
            places.append(here)
            if here.size:
                pieces.append(read_values(reader, head, here.size, tensor.name))
        values.append(join(head, pieces))
    exact = _read_exact(reader, layout) if flags & _EXACT else None
    if reader.left:
        raise WireError(f"{reader.left} bytes stand behind the end of the message")
    selection: Selection = seeded or (
        Everything(layout.size) if whole else Listed(np.concatenate([np.empty(0, np.uint32), *places]))
    )
    return Payload(layout, selection, tuple(values), exact)


def _pieces(layer: Layer) -> Iterator[tuple[int, int, slice]]:
    """(first coordinate, size, which of the layer's values) of each piece."""
    end = layer.start + layer.size
    for start in range(layer.start, end, PIECE):
        size = min(PIECE, end - start)
        yield start, size, slice(*np.searchsorted(layer.positions, [start, start + size]))


def _view(blob: object) -> memoryview:
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise WireError(f"a message is bytes, not {type(blob).__name__}")
    try:
        return memoryview(blob).cast("B")
    except TypeError:
        raise WireError("a message must be contiguous bytes; copy it with bytes(...) first") from None


def _checked(message: memoryview, layout: Layout) -> memoryview:
    """The message without its checksum, once what stands around the body is known to be right."""
    if len(message) < _HEADER + _CHECKSUM:
        raise WireError(f"{len(message)} bytes are too few for a message: it has at least {_HEADER + _CHECKSUM}")
    if message[: len(MAGIC)] != MAGIC:
        raise WireError(
            f"the message starts with {bytes(message[:4])!r}, not with {MAGIC!r}: it is not an FSQ1 message"
        )
    body = message[:-_CHECKSUM]
    if xxhash.xxh3_64_intdigest(body) != int.from_bytes(message[-_CHECKSUM:], "little"):
        raise WireError("the checksum does not match: the message was damaged or cut on its way")
    flags = body[len(MAGIC)]
    if flags & ~(_SEEDED | _EXACT):
        raise WireError(f"flags {flags:#04x} are not known: the message is of a later version")
    digest = int.from_bytes(body[_HEADER - 8 : _HEADER], "little")
    if digest != layout.digest:
        raise WireError(
            f"the message is for a model with digest {digest:016x}, this one has {layout.digest:016x}: "
            "both sides must have the same tensors, with the same names, shapes and types"
        )
    return body


def _read_seed(reader: Reader, layout: Layout) -> Seeded:
    seed = int.from_bytes(reader.raw(8), "little")
    count = int.from_bytes(reader.raw(4), "little")
    if count > layout.size:
        raise WireError(f"{count:,} seeded coordinates do not fit a model of {layout.size:,}")
    return Seeded(layout.size, count, seed)


def _write_exact(writer: Writer, exact: Exact, layout: Layout) -> None:
    for data, dtype, size in ((exact.buffers, "<f4", layout.buffer_size), (exact.counters, "<i8", layout.counter_size)):
        if data.shape != (size,):
            raise WireError(f"the exact part has {list(data.shape)} values where this layout has [{size}]")
        raw: NDArray[Any] = data.astype(dtype, copy=False).view(np.uint8)
        writer.stream(raw, writer.squeeze(raw))


def _read_exact(reader: Reader, layout: Layout) -> Exact:
    buffers, _ = reader.stream(4 * layout.buffer_size, 4 * layout.buffer_size)
    counters, _ = reader.stream(8 * layout.counter_size, 8 * layout.counter_size)
    exact = Exact(buffers.view("<f4").astype(np.float32), counters.view("<i8").astype(np.int64))
    if not np.isfinite(exact.buffers).all():
        raise WireError("a buffer is infinite or not a number")
    return exact
