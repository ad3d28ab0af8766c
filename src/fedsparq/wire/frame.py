"""The FSQ1 message: payload to bytes and back. FORMAT.md next to this file describes it for other languages."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.layout import Buffers, Layout
from fedsparq.payload import Payload, Reader, Seeded, Writer
from fedsparq.payload.levels import ScaledLevels
from fedsparq.threads import resolve_threads
from fedsparq.wire.chunks import Part, read_layers, write_layers
from fedsparq.wire.context import context_levels, read_levels, write_levels

MAGIC = b"FSQ1"

_SEEDED = 1
_BUFFERS = 2
_CONTEXT = 4
_SHORT = 8
_HEADER = len(MAGIC) + 1 + 8
_CHECKSUM = 8


def encode(payload: Payload, *, threads: int | None = None) -> bytes:
    """Return the message of a payload: the same with any number of threads, by default what the process may use."""
    if payload.message is not None:
        return payload.message
    message, levels = _write(payload, threads=threads), context_levels(payload)
    return min(message, _write(payload, levels), key=len) if levels else message


def decode(blob: bytes | bytearray | memoryview, layout: Layout) -> Payload:
    """Return the payload of a message; WireError unless it is exactly right."""
    return read(blob, layout)


def read(blob: bytes | bytearray | memoryview, layout: Layout, parts: list[Part] | None = None) -> Payload:
    """Decode a message, and add to `parts`, if given, what each byte is for."""
    message, digest = check_frame(blob)
    if digest != layout.digest:
        raise WireError(
            f"the message is for a model with digest {digest:016x}, this one has {layout.digest:016x}: "
            "both sides must have the same tensors, with the same names, shapes and types"
        )
    reader = Reader(message)
    flags = reader.raw(_HEADER)[len(MAGIC)]
    seeded = _read_seed(reader, layout) if flags & _SEEDED else None
    body_start, layers = reader.at, list[Part]() if parts is None else parts
    if flags & _CONTEXT:
        selection, values = read_levels(reader, layout, bool(flags & _SHORT), layers)
    else:
        selection, values = read_layers(reader, layout, seeded, parts)
    body_end = reader.at
    buffers = _read_buffers(reader, layout) if flags & _BUFFERS else None
    if reader.left:
        raise WireError(f"{reader.left} trailing bytes after the message")
    others = {"header": body_start, "buffers and counters": reader.at - body_end, "checksum": _CHECKSUM}
    layers += [Part(None, coding=what, value_bytes=size) for what, size in others.items()]
    return Payload(layout, selection, values, buffers)


def _write(payload: Payload, levels: tuple[ScaledLevels, ...] = (), threads: int | None = 1) -> bytes:
    """Return the message, context-coded if levels are given."""
    layout, selection = payload.layout, payload.selection
    short = bool(levels) and all(values.is_short for values in levels)
    flags = _SEEDED * isinstance(selection, Seeded) | _BUFFERS * (payload.buffers is not None)
    writer = Writer()
    writer.raw(MAGIC)
    writer.byte(flags | _CONTEXT * bool(levels) | _SHORT * short)
    writer.raw(layout.digest.to_bytes(8, "little"))
    if isinstance(selection, Seeded):
        writer.raw(selection.seed.to_bytes(8, "little") + selection.count.to_bytes(4, "little"))
    if levels:
        write_levels(writer, payload, levels, short)
    else:
        write_layers(writer, payload, resolve_threads(threads, layout.size))
    if payload.buffers is not None:
        _write_buffers(writer, payload.buffers, layout)
    return writer.with_checksum()


def check_frame(blob: bytes | bytearray | memoryview) -> tuple[memoryview, int]:
    """Return a message without its checksum, and the digest of its layout, after all checks that need no layout."""
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise WireError(f"a message is bytes, not {type(blob).__name__}")
    try:
        message = memoryview(blob).cast("B")
    except TypeError:
        raise WireError("a message must be contiguous bytes; copy it with bytes(...) first") from None
    if len(message) < _HEADER + _CHECKSUM:
        raise WireError(f"{len(message)} bytes are too few for a message: it has at least {_HEADER + _CHECKSUM}")
    magic = bytes(message[: len(MAGIC)])
    if magic != MAGIC:
        raise WireError(f"the message starts with {magic!r}, not with {MAGIC!r}: it is not an FSQ1 message")
    body = message[:-_CHECKSUM]
    if xxhash.xxh3_64_intdigest(body) != int.from_bytes(message[-_CHECKSUM:], "little"):
        raise WireError("the checksum does not match: the message was damaged or cut on its way")
    flags = body[len(MAGIC)]
    if flags & ~(_SEEDED | _BUFFERS | _CONTEXT | _SHORT):
        raise WireError(f"flags {flags:#04x} are not known: the message is of a later version")
    if flags & (_CONTEXT | _SEEDED) == _CONTEXT | _SEEDED or flags & (_CONTEXT | _SHORT) == _SHORT:
        raise WireError(f"flags {flags:#04x} contradict each other")
    return body, int.from_bytes(body[_HEADER - 8 : _HEADER], "little")


def _read_seed(reader: Reader, layout: Layout) -> Seeded:
    seed, count = reader.number(8), reader.number(4)
    if count > layout.size:
        raise WireError(f"{count:,} seeded coordinates do not fit a model of {layout.size:,}")
    return Seeded(layout.size, count, seed)


def _write_buffers(writer: Writer, buffers: Buffers, layout: Layout) -> None:
    arrays = ((buffers.statistics, "<f4", layout.buffer_size), (buffers.counters, "<i8", layout.counter_size))
    for data, dtype, size in arrays:
        if data.shape != (size,):
            raise WireError(f"the buffers or counters are {list(data.shape)} values where this layout has [{size}]")
        raw: NDArray[Any] = data.astype(dtype, copy=False).view(np.uint8)
        writer.stream(raw, writer.compress(raw))


def _read_buffers(reader: Reader, layout: Layout) -> Buffers:
    statistics, _ = reader.stream(4 * layout.buffer_size, 4 * layout.buffer_size)
    counters, _ = reader.stream(8 * layout.counter_size, 8 * layout.counter_size)
    buffers = Buffers(statistics.view("<f4").astype(np.float32), counters.view("<i8").astype(np.int64))
    if not np.isfinite(buffers.statistics).all():
        raise WireError("a buffer is infinite or not a number")
    return buffers
