"""What a message holds and what each part of it costs, beside the entropy bound and the paper's six bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.table import Table

from fedsparq.errors import WireError
from fedsparq.layout import Layout
from fedsparq.payload import Payload, Sparse, Values
from fedsparq.wire.chunks import Part
from fedsparq.wire.frame import opened, read

PAPER_BYTES = 6
"""A four-byte index and a two-byte value."""
_TITLES = ["size", "kept", "kept %", "index", "values", "index bytes", "value bytes", "bits / kept", "bound", "paper"]

_WIDE = 130
"""Columns that one table takes, with the names of layers that models have."""


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
    """What indices and values would cost at the entropy of independent coordinates with these frequencies."""

    @property
    def bytes(self) -> int:
        return self.index_bytes + self.value_bytes


@dataclass(frozen=True)
class Inspection:
    """A message taken apart: all its bytes are in one of the sums. Without a layout only the header is known."""

    digest: int
    total_bytes: int
    layers: tuple[LayerCost, ...] = ()
    other_bytes: Mapping[str, int] = field(default_factory=dict)
    """What belongs to no layer: the header, the checksum and so on."""

    @property
    def bound_bytes(self) -> float:
        return sum(layer.bound_bytes for layer in self.layers)


def inspect(blob: bytes, layout: Layout | None = None) -> Inspection:
    """Take a message apart. A message does not carry its layout; without one only the header can be told."""
    if layout is None:
        return Inspection(opened(blob)[1], len(blob))
    parts, layers = list[Part](), []
    payload = read(blob, layout, parts)
    for layer in payload.layers():
        own = [part for part in parts if part.layer == layer.name]
        codings = dict.fromkeys(part.coding for part in own if part.coding)
        layers.append(
            LayerCost(
                name=layer.name,
                size=layer.size,
                kept=len(layer.values),
                index_coding=", ".join(codings),
                value_coding=_name(layer.values),
                index_bytes=sum(part.index_bytes for part in own),
                value_bytes=sum(part.value_bytes for part in own),
                bound_bytes=_bound_bits(payload, layer.values, layer.size) / 8,
            )
        )
    other = {part.coding: part.value_bytes for part in parts if part.layer is None and part.value_bytes}
    return Inspection(layout.digest, len(blob), tuple(layers), other)


def render(inspection: Inspection, width: int = _WIDE) -> Group:
    """The inspection as a table for a terminal; as two of them, what was sent and what it cost, for a narrow one."""
    title = f"{inspection.total_bytes:,} bytes for model {inspection.digest:016x}"
    if not inspection.layers:
        return Group(f"{title}; what they hold can be told with the model's layout (--layout)")
    halves = [range(len(_TITLES))] if width >= _WIDE else [range(5), range(5, len(_TITLES))]
    return Group(*(_table(inspection, columns, title if not columns.start else None) for columns in halves))


def _table(inspection: Inspection, columns: range, title: str | None) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("layer", overflow="fold")
    for column in columns:
        left = _TITLES[column] in ("index", "values")
        table.add_column(_TITLES[column], justify="left" if left else "right", no_wrap=not left)
    layers, others, total = _rows(inspection)
    for rows in (layers, others, [total]):
        for name, *cells in rows:
            if rows is not others or any(cells[column] for column in columns):
                table.add_row(name, *(cells[column] for column in columns))
        table.add_section()
    return table


def _rows(inspection: Inspection) -> tuple[list[list[str]], list[list[str]], list[str]]:
    """What belongs to the layers, what to none, and the sums."""
    layers = []
    for layer in inspection.layers:
        spent = [layer.index_coding, layer.value_coding, f"{layer.index_bytes:,}", f"{layer.value_bytes:,}"]
        rates = _rates(layer.kept, layer.bytes, layer.bound_bytes)
        layers.append([layer.name, *_counts(layer.size, layer.kept), *spent, *rates])
    others = [[name, *[""] * 6, f"{count:,}", "", "", ""] for name, count in inspection.other_bytes.items()]
    size = sum(layer.size for layer in inspection.layers)
    kept = sum(layer.kept for layer in inspection.layers)
    rates = _rates(kept, inspection.total_bytes, inspection.bound_bytes)
    return layers, others, ["total", *_counts(size, kept), "", "", "", f"{inspection.total_bytes:,}", *rates]


def inspect_file(path: Path, layout_path: Path | None = None) -> None:
    """Print what a message in a file holds; the layout is JSON as `Layout.to_json` writes it, or names to shapes."""
    try:
        blob = path.read_bytes()
        layout = Layout.from_json(layout_path.read_text("utf-8")) if layout_path else None
    except OSError as error:
        raise WireError(f"cannot read {error.filename}: {error.strerror}") from None
    console = Console()
    console.print(render(inspect(blob, layout), console.width), soft_wrap=layout is None)


def _counts(size: int, kept: int) -> tuple[str, str, str]:
    return f"{size:,}", f"{kept:,}", f"{100 * kept / size:.2f}" if size else ""


def _rates(kept: int, spent: float, bound: float) -> tuple[str, str, str]:
    if not kept:
        return "", "", ""
    return f"{8 * spent / kept:.2f}", f"{8 * bound / kept:.2f}", f"{8 * PAPER_BYTES}"


def _bound_bits(payload: Payload, values: Values, size: int) -> float:
    indices = size * _binary_entropy(len(values) / size) if isinstance(payload.selection, Sparse) and size else 0.0
    return indices + sum(map(_entropy_bits, values.symbols()))


def _name(values: Values) -> str:
    """A kind of value in words: "float16", "uniform levels"."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", type(values).__name__)
    return words.removesuffix(" Values").lower()


def _entropy_bits(symbols: NDArray[np.integer]) -> float:
    """Bits that all these symbols take together, if each costs what its frequency among them says."""
    _, counts = np.unique(symbols, return_counts=True)
    return float((counts * np.log2(symbols.size / counts)).sum())


def _binary_entropy(p: float) -> float:
    return 0.0 if p in (0, 1) else float(-p * np.log2(p) - (1 - p) * np.log2(1 - p))
