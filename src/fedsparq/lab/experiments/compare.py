"""Many runs, one after another or side by side. One that fails does not hold up the others."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsparq.errors import FedSparQError, OptionError
from fedsparq.lab.engines.processes import Processes, Say
from fedsparq.lab.engines.worker import import_homes
from fedsparq.lab.experiments.callbacks import Callback, Callbacks, closing, in_words
from fedsparq.lab.experiments.folder import RunFolder
from fedsparq.lab.experiments.lock import made
from fedsparq.lab.experiments.naming import differences, run_folder
from fedsparq.lab.results.records import Round
from fedsparq.lab.specs import RunSpec
from fedsparq.methods.registry import find_recipe

Follow = Callable[[RunSpec], Callback]
"""Gives each run a callback of its own."""


@dataclass(frozen=True)
class Outcome:
    """What became of a run: its summary, or the error by which it failed."""

    spec: RunSpec
    folder: Path
    summary: dict[str, Any] | None
    error: str = ""

    @property
    def failed(self) -> bool:
        return self.summary is None


def compare(
    specs: Sequence[RunSpec], out: Path, *, workers: int = 1, jobs: int = 1, follow: Follow = lambda spec: Callback()
) -> list[Outcome]:
    """Run what is not finished yet, each into a folder of its own under `out`, `jobs` of them side by side.

    The results do not depend on `jobs`. Callbacks are called in this process; an error of theirs ends it all.
    """
    runs = _folders(specs, out)
    outcomes: dict[Path, Outcome] = {}
    unfinished = {}
    for folder, spec in runs.items():
        with suppress(FedSparQError):
            if RunFolder(folder).holds(spec):
                with closing([follow(spec)]) as told:
                    outcomes[folder] = Outcome(spec, folder, RunFolder(folder).retell(spec, told))
                continue
        unfinished[folder] = spec
    play = _one_after_another if jobs == 1 else _side_by_side
    with made(out):
        for outcome in play(unfinished, workers, jobs, follow):
            outcomes[outcome.folder] = outcome
    return [outcomes[folder] for folder in runs]


def _folders(specs: Sequence[RunSpec], out: Path) -> dict[Path, RunSpec]:
    """The folder of each run; the same run twice is one run."""
    runs: dict[Path, RunSpec] = {}
    for spec in specs:
        folder = run_folder(out, spec)
        if folder in runs and (changed := differences(runs[folder], spec)):
            told = ", ".join(f"{key} {old!r} and {new!r}" for key, (old, new) in changed.items())
            raise OptionError(f"two runs, with {told}, would have one folder, {folder}; name one by a variant")
        runs[folder] = spec
    return runs


def _one_after_another(runs: dict[Path, RunSpec], workers: int, jobs: int, follow: Follow) -> Iterator[Outcome]:
    from fedsparq.lab.experiments.run import run

    for folder, spec in runs.items():
        told = Callbacks([follow(spec)])
        try:
            yield Outcome(spec, folder, run(spec, folder, resume=True, workers=workers, callbacks=[told]))
        except Exception as error:
            if error is told.error:
                raise
            yield Outcome(spec, folder, None, in_words(error))


def _side_by_side(runs: dict[Path, RunSpec], workers: int, jobs: int, follow: Follow) -> Iterator[Outcome]:
    told: dict[Path, Callback] = {}
    homes = sorted({find_recipe(spec.method).__module__ for spec in runs.values()})
    try:
        with Processes(min(jobs, len(runs)), import_homes, homes) as processes:
            for folder, spec in runs.items():
                processes.submit(folder, _job, spec.model_dump_json(), folder, workers)
            for _ in runs:
                yield _hear_until_one_ends(processes, runs, told, follow)
    finally:
        for callback in told.values():
            callback.close()


def _hear_until_one_ends(
    processes: Processes, runs: dict[Path, RunSpec], told: dict[Path, Callback], follow: Follow
) -> Outcome:
    while True:
        news = processes.news()
        folder, spec = news.key, runs[news.key]
        if folder not in told:
            told[folder] = follow(spec)
        if news.kind == "said":
            _tell(told[folder], spec, folder, *news.value)
            continue
        if news.kind == "died":
            told[folder].fail(_death(news.value))
        told.pop(folder).close()
        if news.kind == "done":
            return Outcome(spec, folder, news.value)
        return Outcome(spec, folder, None, in_words(news.value) if news.kind == "failed" else _death(news.value))


def _tell(told: Callback, spec: RunSpec, folder: Path, what: str, value: Any) -> None:
    if what == "start":
        told.start(spec, folder, value)
    else:
        getattr(told, what)(value)


def _job(say: Say, spec: str, folder: Path, workers: int) -> dict[str, Any]:
    """A run in a process of its own, whose callbacks are in the one that started it."""
    from fedsparq.lab.experiments.run import run

    return run(RunSpec.model_validate_json(spec), folder, resume=True, workers=workers, callbacks=[_Forward(say)])


class _Forward(Callback):
    def __init__(self, say: Say) -> None:
        self._say = say

    def start(self, spec: RunSpec, folder: Path, behind: Sequence[Round]) -> None:
        self._say(("start", behind))

    def round(self, record: Round) -> None:
        self._say(("round", record))

    def warn(self, text: str) -> None:
        self._say(("warn", text))

    def end(self, summary: Mapping[str, Any]) -> None:
        self._say(("end", summary))

    def fail(self, error: str) -> None:
        self._say(("fail", error))


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process was ended by {signal.Signals(-code).name} (out of memory?)"
    return f"its process ended with exit code {code}"
