"""The values of a layer's sent coordinates: what all pieces share, then piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress.field_values import ROTATED_TOGETHER, Buckets, Rotated, rotated_bytes, rotation_chunks
from fedsparq.compress.payload import Floats, Halves, Magnitudes, Steps, Values
from fedsparq.errors import WireError
from fedsparq.layout import MAX_SIZE, Tensor
from fedsparq.wire import kernels
from fedsparq.wire.streams import TINY, Bytes, Reader, Writer

MAX_LEVEL = 32767
MAX_TABLE = 63
_SAMPLE = 4096
_LARGEST = float(np.finfo(np.float32).max)


class Kind(IntEnum):
    FLOATS = 0
    HALVES = 1
    STEPS = 2
    MAGNITUDES = 3
    BUCKETS = 6
    ROTATED = 10


@dataclass(frozen=True)
class LayerHead:
    """What a layer's pieces share: kind, highest level, steps or magnitudes or scales, size of a bucket, seed."""

    kind: Kind
    top: int = 0
    scale: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    bucket: int = 0
    seed: int = 0


def write_head(writer: Writer, values: Values, short: bool = False) -> LayerHead:
    """What stands before a layer's pieces; `short` writes steps and magnitudes as the upper halves of float32."""
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
            _write_scale(writer, np.array([values.step] if top else [], np.float32), short)
            return LayerHead(Kind.STEPS, top)
        case Magnitudes():
            writer.byte(Kind.MAGNITUDES | values.table.size << 2)
            _write_scale(writer, values.table, short)
            return LayerHead(Kind.MAGNITUDES, values.table.size)
        case Buckets():
            top = int(np.abs(values.levels).max(initial=0))
            writer.byte(Kind.BUCKETS)
            writer.varint(values.bucket)
            writer.varint(top)
            _write_scale(writer, values.steps, short)
            return LayerHead(Kind.BUCKETS, top)
        case Rotated():
            writer.byte(Kind.ROTATED)
            writer.raw(values.seed.to_bytes(8, "little"))
            _write_scale(writer, values.scales, short)
            return LayerHead(Kind.ROTATED)


def read_head(reader: Reader, tensor: Tensor, short: bool = False) -> LayerHead:
    code, name = reader.byte(), tensor.name
    if code & 3 == Kind.MAGNITUDES:
        return LayerHead(Kind.MAGNITUDES, code >> 2, _read_scale(reader, code >> 2, 1, name, short))
    match code:
        case Kind.FLOATS | Kind.HALVES:
            return LayerHead(Kind(code))
        case Kind.STEPS:
            top = reader.varint(MAX_LEVEL)
            step = _read_scale(reader, 1 if top else 0, top, name, short)
            if top and step[0] == 0:
                raise WireError(f"layer {name!r}: its step is 0")
            return LayerHead(Kind.STEPS, top, step)
        case Kind.BUCKETS:
            bucket = reader.varint(MAX_SIZE)
            if bucket == 0:
                raise WireError(f"layer {name!r}: its buckets have no size")
            top = reader.varint(MAX_LEVEL)
            steps = _read_scale(reader, -(-tensor.size // bucket), max(top, 1), name, short)
            return LayerHead(Kind.BUCKETS, top, steps, bucket)
        case Kind.ROTATED:
            seed = reader.number(8)
            scales = _read_scale(reader, len(rotation_chunks(tensor.size)), ROTATED_TOGETHER, name, short)
            return LayerHead(Kind.ROTATED, 0, scales, seed=seed)
    raise WireError(f"layer {name!r}: value coding {code} is not one of FSQ1's")


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
        case Rotated():
            start = int(part.start) // 8
            writer.raw(values.negative[start : start + rotated_bytes(int(part.stop) - int(part.start))])
        case Steps() | Magnitudes() | Buckets():
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
    """One piece's values: float32, float16 bits, signed levels, or packed signs."""
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
        case Kind.ROTATED:
            return reader.take(rotated_bytes(count))
        case _:
            return _read_levels(reader, head.top, count, name)


def join(
    head: LayerHead, pieces: Sequence[NDArray[np.generic]], count: int, places: NDArray[np.uint32], start: int
) -> Values:
    """The `count` values of a layer from those of its pieces; `places` are theirs, and `start` is the layer's first."""
    kinds = {Kind.FLOATS: np.float32, Kind.HALVES: np.uint16, Kind.ROTATED: np.uint8}
    data: NDArray[np.generic] = (
        pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, kinds.get(head.kind, np.int16)), *pieces])
    )
    match head.kind:
        case Kind.FLOATS:
            return Floats(data.astype(np.float32, copy=False))
        case Kind.HALVES:
            return Halves(data.astype(np.uint16, copy=False))
        case Kind.STEPS:
            step = head.scale[0] if head.scale.size else np.float32(0)
            return Steps(step, data.astype(np.int16, copy=False))
        case Kind.MAGNITUDES:
            return Magnitudes(head.scale, data.astype(np.int16, copy=False))
        case Kind.BUCKETS:
            owners = (places - np.uint32(start)) // np.uint32(head.bucket)
            return Buckets(head.bucket, head.scale, owners, data.astype(np.int16, copy=False))
        case Kind.ROTATED:
            return Rotated(count, head.seed, head.scale, data.astype(np.uint8, copy=False))


def is_short(values: Values) -> bool:
    """Whether the step or magnitudes of a layer are the same without the lower half of their bits."""
    match values:
        case Steps():
            scale = np.array([values.step], np.float32)
        case Magnitudes():
            scale = values.table
        case _:
            return False
    return not (scale.view(np.uint32) & 0xFFFF).any()


def _write_scale(writer: Writer, scale: NDArray[np.float32], short: bool) -> None:
    writer.raw((scale.view(np.uint32) >> 16).astype("<u2") if short else scale.astype("<f4", copy=False))


def _read_scale(reader: Reader, count: int, most: int, name: str, short: bool) -> NDArray[np.float32]:
    """Numbers of at least 0 that stay finite when multiplied by `most`."""
    if short:
        scale: NDArray[np.float32] = (reader.array("<u2", count).astype(np.uint32) << 16).view(np.float32)
    else:
        scale = reader.array("<f4", count)
    if not np.isfinite(scale).all() or (scale < 0).any() or float(scale.max(initial=0)) * most > _LARGEST:
        raise WireError(f"layer {name!r}: a step, magnitude or scale is negative, not a number or too large")
    return scale


def _read_levels(reader: Reader, top: int, count: int, name: str) -> NDArray[np.int16]:
    if count and not top:
        raise WireError(f"layer {name!r} sends values but has no level for them")
    signs = np.empty(count, np.uint8)
    sound = kernels.unpack(reader.take((count + 7) // 8), 1, signs)
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
    return sample.size >= TINY and int(np.bincount(sample).max()) * 20 > sample.size
