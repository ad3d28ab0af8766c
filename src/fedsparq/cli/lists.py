"""The commands that list methods, data sets, and the client states on this machine."""

from __future__ import annotations

import fcntl
import inspect
import shutil
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Literal, get_args, get_origin

import click
from rich.table import Table

from fedsparq.cli.app import command, console, need_lab, option, say
from fedsparq.errors import OptionError, RunError


@command()
@click.argument("name", required=False)
def methods(name: str | None) -> None:
    """List the methods, or describe one: fedsparq methods stc"""
    from fedsparq.methods.registry import find_recipe, known_methods
    from fedsparq.options import options_model

    if name is None:
        table = Table("method", "what it sends", box=None)
        for known, recipe in known_methods().items():
            table.add_row(known, (recipe.__doc__ or "").split("\n")[0])
        console.print(table)
        say("\n`fedsparq methods NAME` shows the options of one.")
        return
    recipe = find_recipe(name)
    say(f"{name}\n\n{inspect.getdoc(recipe) or ''}\n")
    table = Table("option", "default", "values", box=None)
    for key, field in options_model(recipe).model_fields.items():
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        values = ", ".join(choices) or getattr(field.annotation, "__name__", str(field.annotation))
        table.add_row(key, "needed" if field.is_required() else str(field.default), values)
    console.print(table)


@command()
def datasets() -> None:
    """List the data sets known by name."""
    need_lab()
    from fedsparq.lab.tasks.load import catalogue

    table = Table("name", "hub id", "classes", "train", "test", "found")
    for row in catalogue():
        table.add_row(row.name, row.hub_id, str(row.classes), f"{row.train:,}", f"{row.test:,}", row.where)
    console.print(table)


@command()
@option(
    "--folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="folder of the states",
    show_default="the user's own",
)
@option("--remove", metavar="NAME", multiple=True, help="remove the states of this run or federation; repeatable")
def states(folder: Path | None, remove: tuple[str, ...]) -> None:
    """List or remove the client states on this machine."""
    from fedsparq.flower.stores import default_folder

    root = folder or default_folder()
    found = {path.name: path for path in sorted(root.glob("*-*")) if path.is_dir() and _is_ours(path)}
    for name in remove:
        if name not in found:
            raise OptionError(f"there are no states of {name!r} in {root}; there is {', '.join(found) or 'nothing'}")
        _remove(found.pop(name))
        say(f"removed {root / name}")
    if remove:
        return
    table = Table("name", "nodes", "size", "last used", title=str(root))
    for name, path in found.items():
        files = [file for file in path.rglob("*.safetensors") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        last = max((file.stat().st_mtime for file in files), default=path.stat().st_mtime)
        nodes = len(list(path.glob("node-*")))
        table.add_row(name, str(nodes), f"{size / 1e6:,.1f} MB", f"{datetime.fromtimestamp(last):%Y-%m-%d %H:%M}")
    console.print(table)


def _is_ours(path: Path) -> bool:
    return path.name.startswith(("run-", "federation-")) and any(path.glob("node-*"))


def _remove(path: Path) -> None:
    """Remove a folder of states that no node is at work on; none can begin to while it goes."""
    with ExitStack() as locks:
        for lock in path.rglob("lock"):
            file = locks.enter_context(lock.open())
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"a node is at work on {lock.parent}; end it first") from None
        shutil.rmtree(path)
