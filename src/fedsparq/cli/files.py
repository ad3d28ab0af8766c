"""The commands on files: updates, models, messages, states and residuals of any size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from fedsparq.cli.app import command, console, option, say
from fedsparq.cli.settings import parse_option
from fedsparq.errors import UpdateError, WireError

if TYPE_CHECKING:
    from fedsparq.wire.inspect import Inspection

FILE = click.Path(path_type=Path)
_PAPER_BYTES = 6
"""A four-byte index and a two-byte value."""
_TITLES = ["size", "kept", "kept %", "index", "values", "index bytes", "value bytes", "bits / kept", "bound", "paper"]

_WIDE = 130
"""Columns that one table takes, with the names of layers that models have."""
_MAX_TEXT, _MAX_FACTS = 200, 50
_residual = option(
    "--residual", metavar="FILE", type=FILE, required=True, help="what was not sent yet; created if missing"
)
_threads = option("--threads", metavar="N", type=click.IntRange(0), default=0, help="threads; 0: one per core")


@command(epilog="UPDATE is a safetensors file; its floats are compressed. It can be killed at any moment.")
@click.argument("update", type=FILE)
@_residual
@option("-o", "--out", metavar="FILE", type=FILE, required=True, help="message; it must not exist yet")
@option("--method", metavar="NAME", default="fedsparq", help="`fedsparq methods`")
@option("--option", metavar="KEY=VALUE", multiple=True, help="option of the method, repeatable")
@_threads
def compress(update: Path, residual: Path, out: Path, method: str, option: tuple[str, ...], threads: int) -> None:
    """Compress an update file into a message."""
    from fedsparq.large import compress as make

    options = dict(parse_option(text) for text in option)
    sent = make(update, residual, out, method=method, options=options, threads=threads or None)
    share = 100 * sent.kept / max(sent.coordinates, 1)
    say(f"Message {sent.round}: {sent.bytes:,} bytes in {out}; {share:.2f} % of {sent.coordinates:,} coordinates")


@command(epilog="MODEL is a safetensors file. A message that is not exactly right changes nothing.")
@click.argument("model", type=FILE)
@click.argument("messages", nargs=-1, required=True, type=FILE)
@option("-o", "--out", metavar="FILE", type=FILE, required=True, help="new model; it may be the old one's name")
@option("--weight", metavar="FLOAT", multiple=True, type=float, help="one per message; by default their mean")
@_threads
def apply(model: Path, messages: tuple[Path, ...], out: Path, weight: tuple[float, ...], threads: int) -> None:
    """Add messages to a model file."""
    from fedsparq.large import apply as add

    add(model, messages, out, weights=weight or None, threads=threads or None)
    say(f"{len(messages)} messages added: {out}")


@command(epilog="MESSAGE was not sent, or did not count. It is removed.")
@click.argument("message", type=FILE)
@_residual
@option("--method", metavar="NAME", help="the residual's method, if it is package.module:function")
def restore(message: Path, residual: Path, method: str | None) -> None:
    """Put a message back into its residual."""
    from fedsparq.large import restore as put_back

    say(f"Message {put_back(message, residual, method=method)} is back in {residual}")


@command(
    epilog="An FSQ1 message is shown layer by layer, with the entropy bound and the paper's 6 bytes per coordinate."
)
@click.argument("file", type=FILE)
@option("--layout", metavar="FILE", type=FILE, help="of an FSQ1 message: its model's tensors as JSON, {name: shape}")
def inspect(file: Path, layout: Path | None) -> None:
    """Show what is in a message, state, residual or model file."""
    inspect_file(file, layout)


def inspect_file(path: Path, layout_path: Path | None = None) -> None:
    """Print what a file of ours holds; the layout is JSON as `Layout.to_json` writes it, or names to shapes."""
    from fedsparq.layout import Layout
    from fedsparq.wire.inspect import inspect as inspect_message

    try:
        with path.open("rb") as file:
            start = file.read(16)
        layout = Layout.from_json(layout_path.read_text("utf-8")) if layout_path else None
        if start[:4] == b"FSQS":
            _show_stream(path)
        elif start[8:9] == b"{":
            _show_tensors(path)
        else:
            shown = Console()
            shown.print(render(inspect_message(path.read_bytes(), layout), shown.width), soft_wrap=layout is None)
    except OSError as error:
        if error.filename is None:
            raise
        raise WireError(f"cannot read {error.filename}: {error.strerror}") from None


def _show_stream(path: Path) -> None:
    """Print a message of `fedsparq compress`, whose every piece and checksum is checked."""
    from fedsparq.large import MessageReader

    with path.open("rb") as file:
        reader = MessageReader(file)
        pieces, sent, size = 0, 0, 0
        for piece, payload in reader.payloads():
            pieces, sent, size = pieces + 1, sent + payload.kept, size + piece.size
    about = reader.about
    facts = {"method": about.method.label, "round": about.round, "residual": about.origin, "checksum": reader.checksum}
    facts |= {"bytes": f"{path.stat().st_size:,}", "sent": f"{sent:,} of {size:,} coordinates"}
    _show(f"{path}: a stream of {pieces} messages", facts)
    console.print(_tensor_table(((name, "", shape) for name, shape in about.shapes.items())))


def _show_tensors(path: Path) -> None:
    """Print a file of tensors: a model, an update, a state or checkpoint, whose checksum is checked, or a residual."""
    from fedsparq.archive import ArchiveError, unpack
    from fedsparq.large import SafetensorsFile

    try:
        found = SafetensorsFile(path)
        if "fedsparq-residual" in found.metadata:
            kind, facts = "a residual", json.loads(json.loads(found.metadata["fedsparq-residual"])[0])
        elif "fedsparq" in found.metadata:
            kind, facts = "a state of FedSparQ; its checksum is right", unpack(path.read_bytes())[0]
        else:
            kind, facts = "tensors", found.metadata
    except (UpdateError, ArchiveError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise WireError(f"{path} is no file of FedSparQ's, or damaged: {error}") from None
    _show(f"{path}: {kind}", facts if isinstance(facts, dict) else {})
    console.print(_tensor_table((name, entry.dtype, entry.shape) for name, entry in found.entries.items()))


def _show(title: str, facts: dict[str, Any]) -> None:
    say(title)
    for key, value in [*facts.items()][:_MAX_FACTS]:
        say(f"  {_printable(key)}: {_printable(value)}")


def _tensor_table(tensors: Iterator[tuple[str, str, tuple[int, ...]]]) -> Table:
    table = Table("tensor", "type", "shape", box=None)
    for name, kind, shape in tensors:
        table.add_row(Text(_printable(name)), kind, " x ".join(map(str, shape)))
    return table


def _printable(value: object) -> str:
    """Return text of a file that others may have written, without what a terminal would obey."""
    text = value if isinstance(value, str) else json.dumps(value)
    short = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
    return "".join(character if character.isprintable() else "?" for character in short)


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


def _counts(size: int, kept: int) -> tuple[str, str, str]:
    return f"{size:,}", f"{kept:,}", f"{100 * kept / size:.2f}" if size else ""


def _rates(kept: int, spent: float, bound: float) -> tuple[str, str, str]:
    if not kept:
        return "", "", ""
    return f"{8 * spent / kept:.2f}", f"{8 * bound / kept:.2f}", f"{8 * _PAPER_BYTES}"
