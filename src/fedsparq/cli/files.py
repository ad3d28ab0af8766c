"""Updates, models and messages as files: for people with a transport of their own, and models larger than memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsparq.cli.app import app, say
from fedsparq.cli.overrides import parse_option

Residual = Annotated[Path, typer.Option(help="What was not sent yet, a safetensors file; made where there is none.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads; 0 for one per core.")]


@app.command()
def compress(
    update: Annotated[Path, typer.Argument(help="The update, a safetensors file: its floats are compressed.")],
    residual: Residual,
    out: Annotated[Path, typer.Option("-o", "--out", help="The message; it must not be there yet.")],
    method: Annotated[str, typer.Option(help="A method by name; `fedsparq methods` lists them.")] = "fedsparq",
    option: Annotated[list[str] | None, typer.Option(help="Of the method: key=value.")] = None,
    threads: Threads = 0,
) -> None:
    """Compress an update of any size into a message, a few layers at a time. Can be killed at any moment."""
    from fedsparq.large import compress as make

    options = dict(parse_option(text) for text in option or ())
    sent = make(update, residual, out, method=method, options=options, threads=threads or None)
    share = 100 * sent.kept / max(sent.coordinates, 1)
    say(f"Message {sent.round}: {sent.bytes:,} bytes in {out}; {share:.2f} % of {sent.coordinates:,} coordinates")


@app.command()
def apply(
    model: Annotated[Path, typer.Argument(help="The model, a safetensors file.")],
    messages: Annotated[list[Path], typer.Argument(help="Messages of `fedsparq compress`.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The new model; it may be the old one's name.")],
    weight: Annotated[list[float] | None, typer.Option(help="One for each message; by default their mean.")] = None,
    threads: Threads = 0,
) -> None:
    """Add messages to a model, a few layers at a time. A message that is not exactly right changes nothing."""
    from fedsparq.large import apply as add

    add(model, messages, out, weights=weight, threads=threads or None)
    say(f"{len(messages)} messages added: {out}")


@app.command()
def restore(
    message: Annotated[Path, typer.Argument(help="A message that was not sent, or did not count.")],
    residual: Residual,
    method: Annotated[str | None, typer.Option(help="The residual's method, if it is package.module:function.")] = None,
) -> None:
    """Put a message back into the residual that it came from, and remove it."""
    from fedsparq.large import restore as put_back

    say(f"Message {put_back(message, residual, method=method)} is back in {residual}")
