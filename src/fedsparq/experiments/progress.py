"""What a person sees while runs are under way: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from fedsparq.experiments.results import Round
from fedsparq.experiments.spec import RunSpec
from fedsparq.experiments.units import human_bytes

Watcher = Callable[[Round], None]


@contextmanager
def following(console: Console) -> Iterator[Callable[[RunSpec], Watcher]]:
    """Gives, for each run, what is to be called after each of its rounds."""
    if not console.is_terminal:
        yield lambda spec: _plain(console, spec)
        return
    columns = (
        TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=12, table_column=Column(min_width=6)),
        MofNCompleteColumn(),
        TextColumn("[bold]{task.fields[accuracy]}"),
        TextColumn("{task.fields[sent]}"),
        TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
        TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
    )
    with Progress(*columns, console=console, expand=True) as progress:
        yield lambda spec: _live(progress, spec)


def describe(spec: RunSpec) -> str:
    return f"{spec.label} · {spec.dataset} {spec.partition_label} seed {spec.seed}"


def _live(progress: Progress, spec: RunSpec) -> Watcher:
    task = progress.add_task(describe(spec), total=spec.rounds, accuracy="", sent="")
    sent = 0.0

    def watch(record: Round) -> None:
        nonlocal sent
        sent += record.upload_bytes
        accuracy = f"{record.accuracy:5.2f} %"
        progress.update(task, completed=record.round, accuracy=accuracy, sent=f"{human_bytes(sent)} sent")

    return watch


def _plain(console: Console, spec: RunSpec) -> Watcher:
    sent = 0.0

    def watch(record: Round) -> None:
        nonlocal sent
        sent += record.upload_bytes
        if record.round == spec.rounds:
            figures = f"{record.accuracy:.2f} %, {human_bytes(sent)} sent per client"
            console.print(f"{describe(spec)}: {spec.rounds} rounds, {figures}", soft_wrap=True, highlight=False)

    return watch
