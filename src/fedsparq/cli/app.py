"""The application that all commands join, and what they share."""

from __future__ import annotations

import importlib.metadata
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from rich.console import Console
from typer.core import TyperGroup

from fedsparq.cli.interrupt import InterruptedCommandError
from fedsparq.errors import MissingExtraError

if TYPE_CHECKING:
    from fedsparq.lab.report.document import Report


class _Commands(TyperGroup):
    def invoke(self, ctx: click.Context) -> Any:
        """For click, KeyboardInterrupt would be the end of the matter."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise InterruptedCommandError from None


app = typer.Typer(
    name="fedsparq",
    cls=_Commands,
    help="Federated learning with small updates: run experiments, compare methods, look into messages.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()


def _show_version(wanted: bool) -> None:
    if wanted:
        print("fedsparq", importlib.metadata.version("fedsparq"))
        raise typer.Exit


@app.callback()
def fedsparq(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")
    ] = False,
) -> None:
    pass


def worker_count(count: int) -> int:
    return count or os.cpu_count() or 1


def say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def say_skipped(report: Report) -> None:
    for path, reason in report.skipped:
        say(f"left out: {path}: {reason}")


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def need_torch() -> None:
    """An error that says what to install, before anything slow is imported."""
    for name in ("torch", "datasets", "pandas", "jinja2"):
        if not _is_installed(name):
            raise MissingExtraError(f"this command needs {name}: pip install 'fedsparq[torch]'")


def conclude(folders: list[Path], page: Path, paper: bool, command: str) -> None:
    """Print the tables of some runs, and write their report and, next to it, the runs as CSV."""
    from fedsparq.lab.report.tables import print_tables
    from fedsparq.lab.results import Results

    results = Results.read(folders)
    print_tables(results, console)
    if not results.runs:
        say(f"Results are in {folders[0]}; there is no report, as the task has no accuracy")
        return
    report = write(folders, page, paper=paper, command=command)
    write(folders, page.with_suffix(".csv"))
    say_skipped(report)
    say(f"Results are in {folders[0]}; report: {page}")


def write(folders: list[Path], out: Path, **about: Any) -> Report:
    """Write a report, as a page or as CSV."""
    from fedsparq.lab.report.page import write_report

    return write_report(folders, out, **about)
