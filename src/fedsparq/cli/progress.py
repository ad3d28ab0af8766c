"""What a person sees while runs are under way: live lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from fedsparq.lab.experiments.callbacks import Callback
from fedsparq.lab.names import human_bytes
from fedsparq.lab.records import Round
from fedsparq.lab.specs import RunSpec

_COLUMNS = (
    TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
    BarColumn(bar_width=12, table_column=Column(min_width=6)),
    MofNCompleteColumn(),
    TextColumn("[bold]{task.fields[accuracy]}"),
    TextColumn("{task.fields[sent]}"),
    TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
    TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
)


@contextmanager
def following(console: Console, runs: int = 1, rounds: int = 0) -> Iterator[Callable[[RunSpec], Callback]]:
    """Gives each of so many runs, which have so many rounds in all, a callback that shows what it does."""
    overall = Overall(runs, rounds)
    if not console.is_terminal:
        yield lambda spec: _Lines(console, spec, overall)
        return
    with Progress(*_COLUMNS, console=console, expand=True) as progress:
        whole = progress.add_task(f"{runs} runs", total=rounds, accuracy="", sent="", left="") if runs > 1 else None
        yield lambda spec: _Live(progress, spec, overall, whole)


def describe(spec: RunSpec) -> str:
    return f"{spec.label} · {spec.dataset} {spec.partition_label} seed {spec.seed}"


class Overall:
    """How far all runs are together, and how long the rest will take at the pace so far."""

    def __init__(self, runs: int, rounds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.runs, self.rounds = runs, rounds
        self.ended = self.behind = self.played = 0
        self._clock, self._begun = clock, clock()

    @property
    def left(self) -> str:
        """Time left, once there is a pace to tell it from."""
        rest = self.rounds - self.behind - self.played
        if not self.played or rest <= 0:
            return ""
        return f"{human_time((self._clock() - self._begun) / self.played * rest)} left"


def human_time(seconds: float) -> str:
    """To the second, the minute or a tenth of an hour."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


class _Lines(Callback):
    """What one run has sent and reached, as a line when it ends."""

    def __init__(self, console: Console, spec: RunSpec, overall: Overall) -> None:
        self._console, self._spec, self._overall = console, spec, overall
        self._sent, self._done, self._ended, self._before = 0.0, 0, False, False
        self._last: Round | None = None

    def start(self, spec: RunSpec, folder: Path, behind: Sequence[Round]) -> None:
        self._overall.behind += len(behind)
        self._before = len(behind) == spec.rounds
        for record in behind:
            self._take(record)

    def round(self, record: Round) -> None:
        self._overall.played += 1
        self._take(record)

    def warn(self, text: str) -> None:
        self._say(f"{describe(self._spec)}: {text}")

    def end(self, summary: Mapping[str, Any]) -> None:
        self._ended = True
        self._overall.ended += 1
        note = " (finished before)" if self._before else ""
        figures = f"{self._figures()}, {human_bytes(self._sent)} sent per client{note}"
        self._say(f"{self._place()}{describe(self._spec)}: {self._done} rounds, {figures}{self._left()}")

    def fail(self, error: str) -> None:
        self._overall.ended += 1
        self._overall.behind += self._spec.rounds - self._done
        if self._overall.runs > 1:
            self._say(f"{self._place()}{describe(self._spec)}: failed after {self._done} rounds: {error}{self._left()}")

    def _take(self, record: Round) -> None:
        self._sent, self._done, self._last = self._sent + record.upload_bytes, record.round, record

    def _figures(self) -> str:
        if self._last is None:
            return ""
        accuracy, loss = self._last.accuracy, self._last.loss
        if accuracy == accuracy or loss == loss:
            return f"{accuracy:.2f} %" if accuracy == accuracy else f"loss {loss:.4g}"
        return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in self._last.metrics.items())

    def _place(self) -> str:
        return f"[{self._overall.ended}/{self._overall.runs}] " if self._overall.runs > 1 else ""

    def _left(self) -> str:
        return f"; {self._overall.left}" if self._overall.runs > 1 and self._overall.left else ""

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)


class _Live(_Lines):
    """A line for each run under way, and one for all of them; what has ended moves up as a plain line."""

    def __init__(self, progress: Progress, spec: RunSpec, overall: Overall, whole: TaskID | None) -> None:
        super().__init__(progress.console, spec, overall)
        self._progress, self._whole, self._own = progress, whole, Overall(1, spec.rounds)
        self._task: TaskID | None = None

    def start(self, spec: RunSpec, folder: Path, behind: Sequence[Round]) -> None:
        super().start(spec, folder, behind)
        self._own = Overall(1, spec.rounds)
        self._own.behind = len(behind)
        self._task = self._progress.add_task(describe(spec), total=spec.rounds, accuracy="", sent="", left="")
        self._show()

    def round(self, record: Round) -> None:
        super().round(record)
        self._own.played += 1
        self._show()

    def fail(self, error: str) -> None:
        super().fail(error)
        self._show()

    def close(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None

    def _show(self) -> None:
        if self._task is not None:
            reached, sent = self._figures(), f"{human_bytes(self._sent)} sent"
            self._progress.update(self._task, completed=self._done, accuracy=reached, sent=sent, left=self._own.left)
        if self._whole is not None:
            done = self._overall.behind + self._overall.played
            name = f"{self._overall.ended} of {self._overall.runs} runs"
            self._progress.update(self._whole, completed=done, description=name, left=self._overall.left)
