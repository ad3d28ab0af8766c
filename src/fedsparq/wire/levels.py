"""All layers of a small model at once: their heads, then every coordinate's level in one context-coded stream."""

from __future__ import annotations

import numpy as np

from fedsparq.compress.payload import Everything, Listed, Magnitudes, Payload, Seeded, Steps, Values
from fedsparq.errors import WireError
from fedsparq.layout import Layout
from fedsparq.wire import context
from fedsparq.wire.pieces import Body, Part
from fedsparq.wire.streams import Reader, Writer
from fedsparq.wire.values import Kind, join, read_head, write_head

CONTEXT_TO = 1 << 18
"""Up to this many coordinates context coding is worth its time, about 50 ns each."""
_CONTEXT_FROM = 64


def suits_levels(payload: Payload) -> bool:
    """Whether a payload can be context-coded, and is of a size to gain by it."""
    return (
        not isinstance(payload.selection, Seeded)
        and payload.layout.size <= CONTEXT_TO
        and _CONTEXT_FROM <= payload.kept < payload.layout.size
        and all(isinstance(v, Steps | Magnitudes) for v in payload.values)
    )


def write_levels(writer: Writer, payload: Payload, short: bool) -> None:
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


def read_levels(reader: Reader, layout: Layout, short: bool) -> Body:
    heads, parts = [], []
    for tensor in layout.parameters:
        at = reader.at
        head = read_head(reader, tensor, short)
        if head.kind not in (Kind.STEPS, Kind.MAGNITUDES):
            raise WireError(f"layer {tensor.name!r} has no levels, but the message is context-coded")
        heads.append(head)
        parts.append(Part(tensor.name, value_bytes=reader.at - at))
    sending = [(tensor, head.top) for tensor, head in zip(layout.parameters, heads, strict=True) if head.top]
    at = reader.at
    data = reader.take(reader.varint(reader.left))
    parts.append(Part("", coding="context", value_bytes=reader.at - at))
    found = dict(zip((tensor.name for tensor, _ in sending), context.unpack(data, sending), strict=True))
    places, values = [np.empty(0, np.uint32)], list[Values]()
    for tensor, head in zip(layout.parameters, heads, strict=True):
        levels = found.get(tensor.name, np.empty(0, np.int16))
        inside = np.flatnonzero(levels).astype(np.uint32)
        places.append(inside + np.uint32(tensor.offset))
        values.append(join(head, [levels[inside]], inside.size, inside, 0))
        parts.append(Part(tensor.name, inside.size, "context"))
    sent = np.concatenate(places)
    selection = Everything(layout.size) if sent.size == layout.size else Listed(sent)
    return Body(selection, tuple(values), tuple(parts))
