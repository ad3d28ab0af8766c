"""What a message holds and what each part of it costs, beside the entropy bound and the paper's six bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedsparq.compress.field_values import Rotated
from fedsparq.compress.payload import Floats, Halves, Listed, Payload, Values
from fedsparq.errors import WireError
from fedsparq.layout import Layout
from fedsparq.wire.frame import digest_of, read

PAPER_BYTES = 6
"""A four-byte index and a two-byte value."""


@dataclass(frozen=True)
class LayerCost:
    """One layer's share of a message."""

    name: str
    size: int
    kept: int
    index_coding: str
    value_coding: str
    index_bytes: int
    value_bytes: int
    bound_bytes: float
    """What places and values would cost at the entropy of independent coordinates with these frequencies."""

    @property
    def bytes(self) -> int:
        return self.index_bytes + self.value_bytes


@dataclass(frozen=True)
class Inspection:
    """A message taken apart: all its bytes are in one of the sums. Without a layout only the header is known."""

    digest: int
    total_bytes: int
    layers: tuple[LayerCost, ...] = ()
    header_bytes: int = 0
    shared_bytes: int = 0
    """One stream for all layers, where levels are coded by context."""
    exact_bytes: int = 0
    checksum_bytes: int = 0

    @property
    def size(self) -> int:
        return sum(layer.size for layer in self.layers)

    @property
    def kept(self) -> int:
        return sum(layer.kept for layer in self.layers)

    @property
    def bound_bytes(self) -> float:
        return sum(layer.bound_bytes for layer in self.layers)


def inspect(blob: bytes, layout: Layout | None = None) -> Inspection:
    """Take a message apart. A message does not carry its layout; without one only the header can be told."""
    if layout is None:
        return Inspection(digest_of(blob), len(blob))
    message = read(blob, layout)
    parts = message.body.parts
    payload = Payload(layout, message.body.selection, message.body.values)
    layers = []
    for layer in payload.layers():
        own = [part for part in parts if part.layer == layer.name]
        codings = dict.fromkeys(part.coding for part in own if part.coding)
        layers.append(
            LayerCost(
                name=layer.name,
                size=layer.size,
                kept=len(layer.values),
                index_coding=", ".join(codings),
                value_coding=type(layer.values).__name__.lower(),
                index_bytes=sum(part.index_bytes for part in own),
                value_bytes=sum(part.value_bytes for part in own),
                bound_bytes=_bound_bits(payload, layer.values, layer.size) / 8,
            )
        )
    return Inspection(
        digest=layout.digest,
        total_bytes=len(blob),
        layers=tuple(layers),
        header_bytes=message.header_bytes,
        shared_bytes=sum(part.index_bytes + part.value_bytes for part in parts if not part.layer),
        exact_bytes=message.exact_bytes,
        checksum_bytes=message.checksum_bytes,
    )


def render(inspection: Inspection) -> Table:
    """The inspection as a table for the terminal."""
    table = Table(title=f"{inspection.total_bytes:,} bytes for model {inspection.digest:016x}")
    table.add_column("layer", overflow="fold")
    for title in ("size", "kept", "kept %"):
        table.add_column(title, justify="right")
    table.add_column("index")
    table.add_column("values")
    for title in ("index bytes", "value bytes", "bits / kept", "bound", "paper"):
        table.add_column(title, justify="right")
    for layer in inspection.layers:
        table.add_row(
            layer.name,
            *_counts(layer.size, layer.kept),
            layer.index_coding,
            layer.value_coding,
            f"{layer.index_bytes:,}",
            f"{layer.value_bytes:,}",
            *_rates(layer.kept, layer.bytes, layer.bound_bytes),
        )
    table.add_section()
    for name, count in _around(inspection):
        table.add_row(name, *[""] * 6, f"{count:,}")
    table.add_row(
        "total",
        *_counts(inspection.size, inspection.kept),
        "",
        "",
        "",
        f"{inspection.total_bytes:,}",
        *_rates(inspection.kept, inspection.total_bytes, inspection.bound_bytes),
    )
    return table


def inspect_file(path: Path, layout_path: Path | None = None) -> None:
    """Print what a message in a file holds; the layout is JSON as `Layout.to_json` writes it, or names to shapes."""
    try:
        blob = path.read_bytes()
        layout = Layout.from_json(layout_path.read_text("utf-8")) if layout_path else None
    except OSError as error:
        raise WireError(f"cannot read {error.filename}: {error.strerror}") from None
    Console().print(render(inspect(blob, layout)))


def _around(inspection: Inspection) -> Iterator[tuple[str, int]]:
    if inspection.layers or inspection.header_bytes:
        yield "header", inspection.header_bytes
        if inspection.shared_bytes:
            yield "levels of all layers, by context", inspection.shared_bytes
        if inspection.exact_bytes:
            yield "buffers and counters, exactly", inspection.exact_bytes
        yield "checksum", inspection.checksum_bytes


def _counts(size: int, kept: int) -> tuple[str, str, str]:
    return f"{size:,}", f"{kept:,}", f"{100 * kept / size:.2f}" if size else ""


def _rates(kept: int, spent: float, bound: float) -> tuple[str, str, str]:
    if not kept:
        return "", "", ""
    return f"{8 * spent / kept:.2f}", f"{8 * bound / kept:.2f}", f"{8 * PAPER_BYTES}"


def _bound_bits(payload: Payload, values: Values, size: int) -> float:
    places = size * _binary_entropy(len(values) / size) if isinstance(payload.selection, Listed) and size else 0.0
    return places + sum(_entropy_bits(symbols) for symbols in _symbols(values))


def _symbols(values: Values) -> Iterator[NDArray[np.integer]]:
    """The values as the wire codes them: bytes of floats, turned float16, signed levels, signs."""
    match values:
        case Floats():
            yield from values.data.view(np.uint8).reshape(-1, 4).T
        case Halves():
            turned = values.bits << np.uint16(1) | values.bits >> np.uint16(15)
            yield turned >> np.uint16(8)
            yield turned & np.uint16(0xFF)
        case Rotated():
            yield np.unpackbits(values.negative)
        case _:
            yield values.levels


def _entropy_bits(symbols: NDArray[np.integer]) -> float:
    """Bits that all these symbols take together, if each costs what its frequency among them says."""
    _, counts = np.unique(symbols, return_counts=True)
    return float((counts * np.log2(symbols.size / counts)).sum())


def _binary_entropy(p: float) -> float:
    return 0.0 if p in (0, 1) else float(-p * np.log2(p) - (1 - p) * np.log2(1 - p))
