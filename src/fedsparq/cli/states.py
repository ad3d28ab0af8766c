"""The states that this machine's Flower nodes keep: what there is, and away with it."""

from __future__ import annotations

import fcntl
import shutil
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedsparq.cli.app import app, console, say
from fedsparq.errors import OptionError, RunError

Folder = Annotated[Path | None, typer.Option(help="Where they lie; by default the user's own folder for states.")]
Remove = Annotated[list[str] | None, typer.Option(help="Remove the states of this run or federation, by its name.")]


@app.command()
def states(folder: Folder = None, remove: Remove = None) -> None:
    """List what nodes of Flower keep on this machine, by run and federation, or remove some of it."""
    from fedsparq.flower.stores import default_folder

    root = folder or default_folder()
    found = {path.name: path for path in sorted(root.glob("*-*")) if path.is_dir() and _is_ours(path)}
    for name in remove or ():
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
