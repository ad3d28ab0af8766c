"""An inspected message as a table for a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console, Group
from rich.table import Table

from fedsparq.errors import WireError
from fedsparq.layout import Layout
from fedsparq.wire.inspect import Inspection, inspect

_PAPER_BYTES = 6
"""A four-byte index and a two-byte value."""
_TITLES = ["size", "kept", "kept %", "index", "values", "index bytes", "value bytes", "bits / kept", "bound", "paper"]

_WIDE = 130
"""Columns that one table takes, with the names of layers that models have."""


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
    return f"{8 * spent / kept:.2f}", f"{8 * bound / kept:.2f}", f"{8 * _PAPER_BYTES}"
