"""The application: its commands by name, its help, and what all commands share."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from textwrap import wrap
from typing import Any

import click
from rich.console import Console

from fedsparq.cli.interrupt import InterruptedCommandError
from fedsparq.errors import FedSparQError, MissingExtraError, did_you_mean

COMMANDS = {
    "Experiments": ("experiments", ("run", "compare", "report", "reproduce", "deploy")),
    "Lists": ("lists", ("methods", "datasets", "states")),
    "Files": ("files", ("compress", "apply", "restore", "inspect")),
}
"""The module and the names of the commands under each heading of the help."""

_LAB = ("torch", "datasets", "pandas", "jinja2", "safetensors", "tomli_w", "cryptography")
_INDENT = 26
"""The column in which the help's explanations begin."""

console = Console()


class Option(click.Option):
    """An option with the heading that it has in the help; one that is `rare` is in ``--help-all`` alone."""

    def __init__(self, *flags: Any, heading: str = "Options", rare: bool = False, **settings: Any) -> None:
        super().__init__(*flags, **settings)
        self.heading, self.rare = heading, rare

    def row(self) -> tuple[str, str]:
        """Return the option as it is written, and what it does."""
        written = ", ".join(self.opts) + (f" {self.metavar}" if self.metavar and not self.is_flag else "")
        shown = self.show_default if isinstance(self.show_default, str) else self.default
        plain = isinstance(shown, str | int | float | os.PathLike) and not isinstance(shown, bool) and str(shown)
        return written, f"{self.help}  [{shown}]" if plain else str(self.help)


class Command(click.Command):
    """A command whose help has headings, shows defaults and fits 80 columns."""

    def get_help_option(self, ctx: click.Context) -> click.Option:
        return _HELP

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        found = super().get_params(ctx)
        rare = any(isinstance(option, Option) and option.rare for option in self.params)
        return [*found, _HELP_ALL] if rare else found

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        everything = ctx.meta.get("everything", False)
        self.format_usage(ctx, formatter)
        _write(formatter, self.help or "")
        headings: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            if isinstance(option, Option) and (everything or not option.rare):
                headings.setdefault(option.heading, []).append(option.row())
        for heading, rows in headings.items():
            _write_rows(formatter, heading, rows)
        if self.epilog:
            _write(formatter, self.epilog)


class _Commands(click.Group):
    """The commands, each imported when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for _, names in COMMANDS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for module, names in COMMANDS.values():
            if cmd_name in names:
                command: click.Command = getattr(import_module(f"fedsparq.cli.{module}"), cmd_name)
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}; {did_you_mean(args[0], names)}there is {', '.join(names)}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage("fedsparq", "COMMAND [OPTIONS]")
        _write(formatter, self.help or "")
        for heading, (_, names) in COMMANDS.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            _write_rows(formatter, heading, [(name, _first_line(each)) for name, each in found], indent=13)
        _write(formatter, "`fedsparq COMMAND -h` explains one. First try: fedsparq compare quickstart")

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; click would end the process at once where it sees a KeyboardInterrupt."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise InterruptedCommandError from None


def option(*flags: str, heading: str = "Options", **settings: Any) -> Callable[[Any], Any]:
    """Declare an option of a command."""
    return click.option(*flags, cls=Option, heading=heading, **settings)


def command(**settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command."""
    return click.command(cls=Command, **settings)


def _help_option(*flags: str, everything: bool) -> Option:
    def show(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted:
            ctx.meta["everything"] = everything
            click.echo(ctx.get_help())
            ctx.exit()

    text = "show every option" if everything else "show this text"
    settings: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": show}
    return Option([*flags], heading="Help", help=text, **settings)


_HELP = _help_option("-h", "--help", everything=False)
_HELP_ALL = _help_option("--help-all", everything=True)


def _first_line(command: click.Command | None) -> str:
    return (command.help or "").split("\n")[0] if command else ""


def _write(formatter: click.HelpFormatter, text: str) -> None:
    """Write paragraphs; no word is broken, nor a name at its hyphen."""
    for paragraph in text.split("\n\n"):
        lines = wrap(" ".join(paragraph.split()), 76, break_on_hyphens=False, break_long_words=False)
        formatter.write("".join(["\n", *(f"  {line}\n" for line in lines)]))


def _write_rows(
    formatter: click.HelpFormatter, heading: str, rows: Sequence[tuple[str, str]], indent: int = _INDENT
) -> None:
    formatter.write(f"\n{heading}:\n")
    for name, text in rows:
        lines = wrap(text, 80 - indent, break_on_hyphens=False, break_long_words=False)
        if len(name) + 4 > indent:
            formatter.write(f"  {name}\n")
            name = ""
        for line in lines:
            formatter.write(f"  {name:<{indent - 2}}{line}\n")
            name = ""


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        print("fedsparq", importlib.metadata.version("fedsparq"))
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version)
def app() -> None:
    """Federated learning with small updates."""


def call() -> None:
    """Do what the command line says, and exit; an error that we foresee is one sentence on stderr."""
    try:
        try:
            app(prog_name="fedsparq")
        finally:
            sys.stdout.flush()
    except FedSparQError as error:
        print(f"fedsparq: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what could not be written is not tried again at the end
        print(f"fedsparq: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)


def say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def need_lab() -> None:
    """Raise an error that says what to install, before anything slow is imported."""
    for name in _LAB:
        try:
            found = find_spec(name) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            raise MissingExtraError(f"this command needs {name}: pip install 'fedsparq[lab]'")
