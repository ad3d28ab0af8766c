"""Run many specs, sequentially or in parallel. A run that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from fedsparq.errors import FedSparQError, OptionError
from fedsparq.lab.engines.engine import import_homes
from fedsparq.lab.engines.pool import Emit, WorkerExitError, WorkerPool
from fedsparq.lab.experiments.callbacks import Callback, Callbacks, Relay, closing, in_words
from fedsparq.lab.folder import RunFolder, differences, run_folder
from fedsparq.lab.lock import made
from fedsparq.lab.specs import RunSpec
from fedsparq.methods.registry import find_recipe

MakeCallback = Callable[[RunSpec], Callback]
"""Makes the callback of each run."""


@dataclass(frozen=True)
class Outcome:
    """Result of a run: its summary, or the error by which it failed."""

    spec: RunSpec
    folder: Path
    summary: dict[str, Any] | None
    error: str = ""

    @property
    def failed(self) -> bool:
        return self.summary is None


def sweep(
    specs: Sequence[RunSpec],
    out: Path,
    *,
    workers: int = 1,
    jobs: int = 1,
    callbacks: MakeCallback = lambda spec: Callback(),
) -> list[Outcome]:
    """Run what is not finished yet, each into a folder of its own under `out`, `jobs` of them in parallel.

    The results do not depend on `jobs`. Callbacks are called in this process; an error of theirs ends all runs.
    """
    runs = _folders(specs, out)
    outcomes: dict[Path, Outcome] = {}
    unfinished = {}
    for folder, spec in runs.items():
        with suppress(FedSparQError):
            if RunFolder(folder).holds(spec):
                from fedsparq.lab.experiments.run import replay

                with closing([callbacks(spec)]) as told:
                    outcomes[folder] = Outcome(spec, folder, replay(RunFolder(folder), spec, told))
                continue
        unfinished[folder] = spec
    with made(out):
        for outcome in (_sequential if jobs == 1 else _parallel)(unfinished, workers, jobs, callbacks):
            outcomes[outcome.folder] = outcome
    return [outcomes[folder] for folder in runs]


def _folders(specs: Sequence[RunSpec], out: Path) -> dict[Path, RunSpec]:
    """Return the folder of each run; the same run twice is one run."""
    runs: dict[Path, RunSpec] = {}
    for spec in specs:
        folder = run_folder(out, spec)
        if folder in runs and (changed := differences(runs[folder], spec)):
            listed = ", ".join(f"{key} {old!r} and {new!r}" for key, (old, new) in changed.items())
            raise OptionError(f"two runs, with {listed}, would have one folder, {folder}; name one by a variant")
        runs[folder] = spec
    return runs


def _sequential(runs: dict[Path, RunSpec], workers: int, jobs: int, make: MakeCallback) -> Iterator[Outcome]:
    from fedsparq.lab.experiments.run import run

    for folder, spec in runs.items():
        callbacks = Callbacks([make(spec)])
        try:
            yield Outcome(spec, folder, run(spec, folder, resume=True, workers=workers, callbacks=[callbacks]))
        except Exception as error:
            if error is callbacks.error:
                raise
            yield Outcome(spec, folder, None, in_words(error))


def _parallel(runs: dict[Path, RunSpec], workers: int, jobs: int, make: MakeCallback) -> Iterator[Outcome]:
    active: dict[Path, Callback] = {}
    events: SimpleQueue[tuple[Path, Any]] = SimpleQueue()
    homes = sorted({find_recipe(spec.method).__module__ for spec in runs.values()})
    try:
        with WorkerPool(max(1, min(jobs, len(runs))), import_homes, homes) as pool:
            for folder, spec in runs.items():
                put = partial(_put, events, folder)
                pool.submit(_job, spec.model_dump_json(), folder, workers, emit=put).add_done_callback(put)
            for _ in runs:
                yield _dispatch_until_done(events, runs, active, make)
    finally:
        for callback in active.values():
            callback.close()


def _put(events: SimpleQueue[tuple[Path, Any]], folder: Path, event: Any) -> None:
    events.put((folder, event))


def _dispatch_until_done(
    events: SimpleQueue[tuple[Path, Any]], runs: dict[Path, RunSpec], active: dict[Path, Callback], make: MakeCallback
) -> Outcome:
    """Pass what the runs report to their callbacks, until one has ended."""
    while True:
        folder, event = events.get()
        spec = runs[folder]
        if folder not in active:
            active[folder] = make(spec)
        if not isinstance(event, Future):
            name, value = event
            arguments = (spec, folder, value) if name == "start" else (value,)
            getattr(active[folder], name)(*arguments)
            continue
        error = event.exception()
        if isinstance(error, WorkerExitError):
            active[folder].fail(str(error))
        active.pop(folder).close()
        return Outcome(spec, folder, None, in_words(error)) if error else Outcome(spec, folder, event.result())


def _job(emit: Emit, spec: str, folder: Path, workers: int) -> dict[str, Any]:
    """Run a spec in a worker process; its callbacks are in the one that started it."""
    from fedsparq.lab.experiments.run import run

    return run(RunSpec.model_validate_json(spec), folder, resume=True, workers=workers, callbacks=[_Forward(emit)])


class _Forward(Relay):
    """Passes everything on to the process that started this one, which knows spec and folder, and closes itself."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def relay(self, hook: str, *told: Any) -> None:
        if told:
            self._emit((hook, told[-1]))
