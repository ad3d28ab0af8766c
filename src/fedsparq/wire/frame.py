"""Payload to bytes and back: the FSQ1 message. FORMAT.md beside this file describes it for other languages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedsparq.compress.payload import (
    Everything,
    Layer,
    Listed,
    Magnitudes,
    Payload,
    Seeded,
    Selection,
    Steps,
    Values,
)
from fedsparq.errors import WireError
from fedsparq.layout import Exact, Layout
from fedsparq.wire import context
from fedsparq.wire.index import Index, read_index, write_index
from fedsparq.wire.streams import Reader, Writer
from fedsparq.wire.values import Kind, is_short, join, read_head, read_values, write_head, write_values

MAGIC = b"FSQ1"
PIECE = 1 << 20
"""A layer is cut into pieces of at most this many coordinates."""

CONTEXT_TO = 1 << 18
"""Up to this many coordinates context coding is worth its time, about 50 ns each."""
_CONTEXT_FROM = 64
_CONTEXT_TOP = 63

_SEEDED = 1
_EXACT = 2
_CONTEXT = 4
_SHORT = 8
_HEADER = len(MAGIC) + 1 + 8
_CHECKSUM = 8


def encode(payload: Payload) -> bytes:
    """The message that carries a payload."""
    message = _message(payload, context=False)
    return min(message, _message(payload, context=True), key=len) if _suits_context(payload) else message


def _message(payload: Payload, context: bool) -> bytes:
    layout, selection = payload.layout, payload.selection
    seeded = isinstance(selection, Seeded)
    short = context and all(is_short(values) for values in payload.values)
    writer = Writer()
    writer.raw(MAGIC)
    writer.byte(_SEEDED * seeded | _EXACT * (payload.exact is not None) | _CONTEXT * context | _SHORT * short)
    writer.raw(layout.digest.to_bytes(8, "little"))
    if isinstance(selection, Seeded):
        writer.raw(selection.seed.to_bytes(8, "little") + selection.count.to_bytes(4, "little"))
    if context:
        _write_levels(writer, payload, short)
    else:
        _write_layers(writer, payload, seeded)
    if payload.exact is not None:
        _write_exact(writer, payload.exact, layout)
    body = writer.bytes()
    return body + xxhash.xxh3_64_intdigest(body).to_bytes(_CHECKSUM, "little")


def decode(blob: bytes | bytearray | memoryview, layout: Layout) -> Payload:
    """The payload that a message carries. Anything that is not exactly right raises WireError."""
    reader = Reader(_checked(_view(blob), layout))
    flags = reader.raw(_HEADER)[len(MAGIC)]
    if flags & _CONTEXT:
        selection, values = _read_levels(reader, layout, bool(flags & _SHORT))
    else:
        selection, values = _read_layers(reader, layout, _read_seed(reader, layout) if flags & _SEEDED else None)
    exact = _read_exact(reader, layout) if flags & _EXACT else None
    if reader.left:
        raise WireError(f"{reader.left} bytes stand behind the end of the message")
    return Payload(layout, selection, values, exact)


def _write_layers(writer: Writer, payload: Payload, seeded: bool) -> None:
    """Layer by layer, piece by piece: places, then values."""
    for layer in payload.layers():
        head = write_head(writer, layer.values)
        for start, size, part in _pieces(layer):
            if seeded:
                writer.byte(Index.SEEDED)
            else:
                write_index(writer, layer.positions[part] - np.uint32(start), size)
            if part.start < part.stop:
                write_values(writer, layer.values, head, part)


def _read_layers(reader: Reader, layout: Layout, seeded: Seeded | None) -> tuple[Selection, tuple[Values, ...]]:
    drawn = seeded.positions() if seeded else None
    places: list[NDArray[np.uint32]] = [np.empty(0, np.uint32)]
    values: list[Values] = []
    whole = True
    for tensor in layout.parameters:
        head = read_head(reader, tensor)
        pieces, first = [], len(places)
        for start in range(tensor.offset, tensor.offset + tensor.size, PIECE):
            size = min(PIECE, tensor.offset + tensor.size - start)
            kind, inside = read_index(reader, size)
            if (kind is Index.SEEDED) != (drawn is not None):
                raise WireError(f"layer {tensor.name!r}: seeded and listed positions are mixed in one message")
            if head.kind is Kind.ROTATED and kind is not Index.ALL:
                raise WireError(f"layer {tensor.name!r} was rotated, but not all of it is sent")
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
        values.append(join(head, pieces, places[first:], tensor.offset))
    return seeded or (Everything(layout.size) if whole else Listed(np.concatenate(places))), tuple(values)


def _suits_context(payload: Payload) -> bool:
    return (
        not isinstance(payload.selection, Seeded)
        and payload.layout.size <= CONTEXT_TO
        and _CONTEXT_FROM <= payload.kept < payload.layout.size
        and all(
            isinstance(v, Steps | Magnitudes) and np.abs(v.levels).max(initial=0) <= _CONTEXT_TOP
            for v in payload.values
        )
    )


def _write_levels(writer: Writer, payload: Payload, short: bool) -> None:
    """The heads of all layers, then the levels of all their coordinates in one stream."""
    layers = []
    for tensor, layer in zip(payload.layout.parameters, payload.layers(), strict=True):
        head = write_head(writer, layer.values, short)
        if head.top and isinstance(layer.values, Steps | Magnitudes):
            levels = np.zeros(layer.size, np.int16)
            levels[layer.positions - np.uint32(layer.start)] = layer.values.levels
            layers.append((tensor, head.top, levels))
    stream = context.pack(layers)
    writer.varint(len(stream))
    writer.raw(stream)


def _read_levels(reader: Reader, layout: Layout, short: bool) -> tuple[Selection, tuple[Values, ...]]:
    heads = [read_head(reader, tensor, short) for tensor in layout.parameters]
    for tensor, head in zip(layout.parameters, heads, strict=True):
        if head.kind not in (Kind.STEPS, Kind.MAGNITUDES) or head.top > _CONTEXT_TOP:
            raise WireError(f"layer {tensor.name!r} has no levels, or too high ones, for a context-coded message")
    sending = [(tensor, head.top) for tensor, head in zip(layout.parameters, heads, strict=True) if head.top]
    data = np.frombuffer(reader.raw(reader.varint(reader.left)), np.uint8)
    found = dict(zip((tensor.name for tensor, _ in sending), context.unpack(data, sending), strict=True))
    places, values = [np.empty(0, np.uint32)], list[Values]()
    for tensor, head in zip(layout.parameters, heads, strict=True):
        levels = found.get(tensor.name, np.empty(0, np.int16))
        inside = np.flatnonzero(levels).astype(np.uint32)
        places.append(inside + np.uint32(tensor.offset))
        values.append(join(head, [levels[inside]], [inside], 0))
    sent = np.concatenate(places)
    return (Everything(layout.size) if sent.size == layout.size else Listed(sent)), tuple(values)


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
    if flags & ~(_SEEDED | _EXACT | _CONTEXT | _SHORT):
        raise WireError(f"flags {flags:#04x} are not known: the message is of a later version")
    if flags & (_CONTEXT | _SEEDED) == _CONTEXT | _SEEDED or flags & (_CONTEXT | _SHORT) == _SHORT:
        raise WireError(f"flags {flags:#04x} contradict each other")
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
