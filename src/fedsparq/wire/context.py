"""Signed levels of a whole model in one arithmetic-coded stream that learns where, and with which sign, they stand.

What is sent of a trained layer clusters: some inputs and some units are active, most are not. A static code cannot see
that. This one predicts each coordinate from its row, its column and its neighbours. It visits every coordinate, so it
is for small models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.layout import Layout, Tensor
from fedsparq.payload import Dense, Payload, Reader, Seeded, Sparse, Values, Writer
from fedsparq.payload.levels import ScaledLevels
from fedsparq.payload.streams import Bytes
from fedsparq.payload.values import value_kind
from fedsparq.wire import context_kernels as kernels
from fedsparq.wire.chunks import Body, Part

Levels = NDArray[np.int16]

CONTEXT_LIMIT = 1 << 18
"""Up to this many coordinates levels may be coded by context, which takes about 50 ns each."""
_MIN_CONTEXT_CODED = 64

_WEIGHTS = tuple(round(65536 * weight) for weight in (0.4, 0.4, 0.4, -0.2, 0.4, 0.2, 0.4))
_WHOLE = 2600 << 8
"""Before anything is known, 4 % are sent."""

_MAX_BYTES_PER_BIT = 2
"""No chance is below 1/65536."""

_chances = (np.arange(4096) + 0.5) / 4096
_TABLES = (
    np.rint(256 * np.log(_chances / (1 - _chances))).clip(-2047, 2047).astype(np.int64),
    np.rint(65536 / (1 + np.exp(-np.arange(-2047, 2048) / 256))).clip(24, 65536 - 24).astype(np.int64),
    np.array([65536 // (met + 2) for met in range(256)], np.int64),
)
"""Chances to log odds (in 1/256), log odds to chances (in 1/65536), how far a context moves by how often it was met."""


def context_levels(payload: Payload) -> tuple[ScaledLevels, ...]:
    """Return a payload's values if they can be coded by context and are of a size to gain by it, else none."""
    values = tuple(v for v in payload.values if isinstance(v, ScaledLevels))
    suits = (
        not isinstance(payload.selection, Seeded)
        and payload.layout.size <= CONTEXT_LIMIT
        and _MIN_CONTEXT_CODED <= payload.kept < payload.layout.size
        and len(values) == len(payload.values)
    )
    return values if suits else ()


def write_levels(writer: Writer, payload: Payload, values: tuple[ScaledLevels, ...], short: bool) -> None:
    """Write the headers of all layers, then every coordinate's level in one stream."""
    layers = []
    for tensor, layer, own in zip(payload.layout.parameters, payload.layers(), values, strict=True):
        own.write_header(writer, short)
        if own.top:
            levels = np.zeros(layer.size, np.int16)
            levels[layer.indices - np.uint32(layer.start)] = own.levels
            layers.append((tensor, own.top, levels))
    stream = pack(layers)
    writer.varint(len(stream))
    writer.raw(stream)


def read_levels(reader: Reader, layout: Layout, short: bool, parts: list[Part]) -> Body:
    """Undo `write_levels`; what each byte was for is added to `parts`."""
    if layout.size > CONTEXT_LIMIT:
        raise WireError(f"levels of {layout.size:,} coordinates are coded by context; {CONTEXT_LIMIT:,} are the most")
    headers = []
    for tensor in layout.parameters:
        at = reader.at
        code = reader.byte()
        kind = value_kind(code, tensor.name)
        if not issubclass(kind, ScaledLevels):
            raise WireError(f"layer {tensor.name!r} has no levels, but the message is context-coded")
        headers.append((tensor, kind, kind.read_header(reader, code, tensor, short)))
        parts.append(Part(tensor.name, value_bytes=reader.at - at))
    sending = [(tensor, header.top) for tensor, _, header in headers if header.top]
    at = reader.at
    data = reader.take(reader.varint(reader.left))
    parts.append(Part(None, coding="levels of all layers, by context", value_bytes=reader.at - at))
    found = dict(zip((tensor.name for tensor, _ in sending), unpack(data, sending), strict=True))
    indices, values = [np.empty(0, np.uint32)], list[Values]()
    for tensor, kind, header in headers:
        levels = found.get(tensor.name, np.empty(0, np.int16))
        inside = np.flatnonzero(levels).astype(np.uint32)
        indices.append(inside + np.uint32(tensor.offset))
        values.append(kind.join(header, levels[inside], inside.view, tensor))
        parts.append(Part(tensor.name, inside.size, "context"))
    sent = np.concatenate(indices)
    selection = Dense(layout.size) if sent.size == layout.size else Sparse(sent)
    return selection, tuple(values)


def pack(layers: Sequence[tuple[Tensor, int, Levels]]) -> bytes:
    """Return the stream of some layers: each tensor with its highest level, and the level of every coordinate."""
    bits = sum(2 * levels.size + int(np.abs(levels).sum(dtype=np.int64)) for _, _, levels in layers)
    coder = _Coder(np.empty(_MAX_BYTES_PER_BIT * bits, np.uint8), decode=False)
    for tensor, top, levels in layers:
        coder.walk(tensor, top, levels)
    return coder.finish()


def unpack(data: Bytes, layers: Sequence[tuple[Tensor, int]]) -> Iterator[Levels]:
    """Undo `pack`: the levels of each layer in turn. Advance it to its end: that is where the data are judged."""
    coder = _Coder(data.copy(), decode=True)
    for tensor, top in layers:
        levels = np.empty(tensor.size, np.int16)
        coder.walk(tensor, top, levels)
        if coder.registers[kernels.UNSOUND]:
            raise WireError(f"layer {tensor.name!r}: a level is above {top}")
        yield levels
    if coder.registers[kernels.AT] < data.size or (data.size and data[-1] == 0):
        raise WireError(f"the context-coded levels end before their {data.size:,} bytes do")


class _Coder:
    """The arithmetic coder and what is learned from layer to layer."""

    def __init__(self, data: Bytes, decode: bool) -> None:
        self._data, self._decode = data, decode
        self.learned = np.array(_WEIGHTS, np.int64), np.array([_WHOLE], np.int64)
        self.registers = np.array([0, 0xFFFFFFFF, 0, 0, 0], np.int64)
        if decode:
            self.registers[kernels.CODE] = int.from_bytes(data[:4].tobytes().ljust(4, b"\0"), "big")
            self.registers[kernels.AT] = 4

    def walk(self, tensor: Tensor, top: int, levels: Levels) -> None:
        kernels.walk(levels, matrix(tensor.shape), top, _TABLES, self.learned, self.registers, self._data, self._decode)

    def finish(self) -> bytes:
        """Return all bytes, with as few last ones as determine the range; zeros at the end are left out."""
        low, high, _, at, _ = map(int, self.registers)
        for kept in range(5):
            unit = 1 << (32 - 8 * kept)
            last = -(-low // unit) * unit
            if last <= high:
                break
        return (self._data[:at].tobytes() + last.to_bytes(4, "big")).rstrip(b"\0")


def matrix(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return rows and columns a tensor is read in, and how far back in a row the other neighbour is; 0: there is none.

    A row is an output. In a convolution the other neighbour is one up in the kernel; where a row is a square image,
    one up in that.
    """
    if len(shape) < 2:
        return 1, math.prod(shape), 0
    columns = math.prod(shape[1:])
    side = math.isqrt(columns)
    return shape[0], columns, shape[-1] if len(shape) > 2 else side if side * side == columns else 0
