"""Payload to bytes and back: the FSQ1 message. FORMAT.md beside this file describes it for other languages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedsparq.compress.payload import Payload, Seeded
from fedsparq.errors import WireError
from fedsparq.layout import Exact, Layout
from fedsparq.wire.levels import read_levels, suits_levels, write_levels
from fedsparq.wire.pieces import Body, read_layers, write_layers
from fedsparq.wire.streams import Reader, Writer
from fedsparq.wire.values import is_short

MAGIC = b"FSQ1"

_SEEDED = 1
_EXACT = 2
_CONTEXT = 4
_SHORT = 8
_HEADER = len(MAGIC) + 1 + 8
_CHECKSUM = 8


@dataclass(frozen=True)
class Message:
    """A message that was read, and how its bytes were spent."""

    body: Body
    exact: Exact | None
    header_bytes: int
    exact_bytes: int
    checksum_bytes: int = _CHECKSUM


def encode(payload: Payload) -> bytes:
    """The message that carries a payload."""
    message = _write(payload, context=False)
    return min(message, _write(payload, context=True), key=len) if suits_levels(payload) else message


def decode(blob: bytes | bytearray | memoryview, layout: Layout) -> Payload:
    """The payload that a message carries. Anything that is not exactly right raises WireError."""
    message = read(blob, layout)
    return Payload(layout, message.body.selection, message.body.values, message.exact)


def read(blob: bytes | bytearray | memoryview, layout: Layout) -> Message:
    """`decode`, with the books."""
    reader = Reader(_checked(_view(blob), layout))
    flags = reader.raw(_HEADER)[len(MAGIC)]
    seeded = _read_seed(reader, layout) if flags & _SEEDED else None
    header_bytes = reader.at
    if flags & _CONTEXT:
        body = read_levels(reader, layout, bool(flags & _SHORT))
    else:
        body = read_layers(reader, layout, seeded)
    body_end = reader.at
    exact = _read_exact(reader, layout) if flags & _EXACT else None
    if reader.left:
        raise WireError(f"{reader.left} bytes stand behind the end of the message")
    return Message(body, exact, header_bytes, reader.at - body_end)


def _write(payload: Payload, context: bool) -> bytes:
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
        write_levels(writer, payload, short)
    else:
        write_layers(writer, payload)
    if payload.exact is not None:
        _write_exact(writer, payload.exact, layout)
    return writer.sealed()


def _view(blob: object) -> memoryview:
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise WireError(f"a message is bytes, not {type(blob).__name__}")
    try:
        return memoryview(blob).cast("B")
    except TypeError:
        raise WireError("a message must be contiguous bytes; copy it with bytes(...) first") from None


def digest_of(blob: bytes | bytearray | memoryview) -> int:
    """The digest of the layout that a message is for, once the message is known to be whole."""
    return int.from_bytes(_whole(_view(blob))[_HEADER - 8 : _HEADER], "little")


def _whole(message: memoryview) -> memoryview:
    """The message without its checksum, once what can be told without the layout is known to be right."""
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
    return body


def _checked(message: memoryview, layout: Layout) -> memoryview:
    """The message without its checksum, once it is known to be whole and for this layout."""
    body = _whole(message)
    digest = int.from_bytes(body[_HEADER - 8 : _HEADER], "little")
    if digest != layout.digest:
        raise WireError(
            f"the message is for a model with digest {digest:016x}, this one has {layout.digest:016x}: "
            "both sides must have the same tensors, with the same names, shapes and types"
        )
    return body


def _read_seed(reader: Reader, layout: Layout) -> Seeded:
    seed, count = reader.number(8), reader.number(4)
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
