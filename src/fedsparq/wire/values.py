"""The values of a layer's sent coordinates: what all pieces share, then piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress.payload import Floats, Halves, Magnitudes, Steps, Values
from fedsparq.errors import WireError
from fedsparq.wire import kernels
from fedsparq.wire.streams import Bytes, Reader, Writer

MAX_LEVEL = 32767
MAX_TABLE = 63
_SAMPLE = 4096
_LARGEST = float(np.finfo(np.float32).max)


class Kind(IntEnum):
    FLOATS = 0
    HALVES = 1
    STEPS = 2
    MAGNITUDES = 3


@dataclass(frozen=True)
class LayerHead:
    """What a layer's pieces share: the kind, the highest level, and one step or a table of magnitudes."""

    kind: Kind
    top: int = 0
    scale: NDArray[np.float32] | None = None


def write_head(writer: Writer, values: Values) -> LayerHead:
    match values:
        case Floats():
            writer.byte(Kind.FLOATS)
            return LayerHead(Kind.FLOATS)
        case Halves():
            writer.byte(Kind.HALVES)
            return LayerHead(Kind.HALVES)
        case Steps():
            top = int(np.abs(values.levels).max(initial=0))
            writer.byte(Kind.STEPS)
            writer.varint(top)
            if top:
                writer.raw(np.array([values.step], "<f4"))
            return LayerHead(Kind.STEPS, top)
        case Magnitudes():
            writer.byte(Kind.MAGNITUDES | values.table.size << 2)
            writer.raw(values.table.astype("<f4", copy=False))
            return LayerHead(Kind.MAGNITUDES, values.table.size)


def read_head(reader: Reader, name: str) -> LayerHead:
    code = reader.byte()
    kind, size = Kind(code & 3), code >> 2
    if kind is Kind.STEPS and size == 0:
        top = reader.varint(MAX_LEVEL)
        step = reader.array("<f4", 1 if top else 0)
        if top and not 0 < float(step[0]) * top <= _LARGEST:
            raise WireError(f"layer {name!r}: step {step[0]} is not a positive number whose multiples are finite")
        return LayerHead(kind, top, step)
    if kind is Kind.MAGNITUDES:
        table = reader.array("<f4", size)
        if not (np.isfinite(table).all() and (table >= 0).all()):
            raise WireError(f"layer {name!r}: a magnitude is negative or not finite")
        return LayerHead(kind, size, table)
    if size:
        raise WireError(f"layer {name!r}: value coding {code} is not one of FSQ1's")
    return LayerHead(kind)


def write_values(writer: Writer, values: Values, head: LayerHead, part: slice) -> None:
    """The values of one piece: `part` of the layer's."""
    match values:
        case Floats():
            writer.raw(values.data[part].astype("<f4", copy=False))
        case Halves():
            halves = values.bits[part]
            high, low = np.empty(halves.size, np.uint8), np.empty(halves.size, np.uint8)
            kernels.split_halves(halves, high, low)
            writer.stream(high, writer.squeeze(high))
            writer.stream(low, writer.squeeze(low) if _repeats(low) else None)
        case Steps() | Magnitudes():
            levels = values.levels[part]
            writer.raw(np.packbits(levels < 0, bitorder="little"))
            above = (np.abs(levels) - 1).astype(np.uint16)
            for shift, width in _planes(head.top):
                plane = (above >> shift).astype(np.uint8)
                packed = np.empty((plane.size * width + 7) // 8, np.uint8)
                kernels.pack(plane, width, packed)
                frame = writer.squeeze(plane)
                writer.stream(packed, frame if frame and len(frame) < packed.size else None)


def read_values(reader: Reader, head: LayerHead, count: int, name: str) -> NDArray[np.generic]:
    """One piece's values: float32, float16 bits, or signed levels."""
    match head.kind:
        case Kind.FLOATS:
            floats = reader.array("<f4", count)
            if not np.isfinite(floats).all():
                raise WireError(f"layer {name!r}: a value is infinite or not a number")
            return floats
        case Kind.HALVES:
            high, _ = reader.stream(count, count)
            low, _ = reader.stream(count, count)
            halves = np.empty(count, np.uint16)
            if kernels.join_halves(high, low, halves) < 0:
                raise WireError(f"layer {name!r}: a value is infinite or not a number")
            return halves
        case _:
            return _read_levels(reader, head.top, count, name)


def join(head: LayerHead, pieces: Sequence[NDArray[np.generic]]) -> Values:
    """The values of a layer from those of its pieces."""
    kinds = {Kind.FLOATS: np.float32, Kind.HALVES: np.uint16}
    data: NDArray[np.generic] = (
        pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, kinds.get(head.kind, np.int16)), *pieces])
    )
    match head.kind:
        case Kind.FLOATS:
            return Floats(data.astype(np.float32, copy=False))
        case Kind.HALVES:
            return Halves(data.astype(np.uint16, copy=False))
        case Kind.STEPS:
            step = head.scale[0] if head.scale is not None and head.scale.size else np.float32(0)
            return Steps(step, data.astype(np.int16, copy=False))
        case Kind.MAGNITUDES:
            table = head.scale if head.scale is not None else np.empty(0, np.float32)
            return Magnitudes(table, data.astype(np.int16, copy=False))


def _read_levels(reader: Reader, top: int, count: int, name: str) -> NDArray[np.int16]:
    if count and not top:
        raise WireError(f"layer {name!r} sends values but has no level for them")
    signs = np.empty(count, np.uint8)
    sound = kernels.unpack(np.frombuffer(reader.raw((count + 7) // 8), np.uint8), 1, signs)
    above = np.zeros(count, np.uint16)
    for shift, width in _planes(top):
        data, raw = reader.stream((count * width + 7) // 8, count)
        plane = np.empty(count, np.uint8) if raw else data
        if raw:
            sound |= kernels.unpack(data, width, plane)
        above |= plane.astype(np.uint16) << np.uint16(shift)
    if sound < 0 or (above >= top).any():
        raise WireError(f"layer {name!r}: a level is above {top}, or bits stand behind the last one")
    levels = above.astype(np.int16) + np.int16(1)
    return np.where(signs, -levels, levels)


def _planes(top: int) -> list[tuple[int, int]]:
    """(shift, width) of the byte planes that levels 1 to `top` need, less one and without sign."""
    width = max(top - 1, 0).bit_length()
    return [(shift, min(8, width - shift)) for shift in range(0, width, 8)]


def _repeats(data: Bytes) -> bool:
    """Whether some byte is so common in a sample that zstd is worth trying."""
    sample = data[:_SAMPLE]
    return sample.size > 0 and int(np.bincount(sample).max()) * 20 > sample.size
