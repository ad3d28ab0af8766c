"""Experiments from Python: `fedsparq.run` and `fedsparq.compare`, by the names that the command line has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from safetensors.numpy import load_file

from fedsparq.errors import MissingExtraError
from fedsparq.lab.experiments.callbacks import Callback, Callbacks, Watch
from fedsparq.lab.experiments.trackers import trackers
from fedsparq.lab.folder import RunFolder
from fedsparq.lab.records import Round
from fedsparq.lab.specs import RunSpec, check_names_early, compare_of, load_compare, load_run, locate
from fedsparq.lab.specs.run import to_spec_table

if TYPE_CHECKING:
    from pandas import DataFrame

File = str | PathLike[str]


@dataclass(frozen=True)
class Result:
    """A finished run."""

    summary: dict[str, Any]
    """`summary.json`: what was run, and the figures of the whole run."""
    rounds: DataFrame
    """A row for each round: round, accuracy, loss, upload_bytes, download_bytes, kept, clients, ..."""
    model: dict[str, NDArray[Any]]
    """The trained model, an array for each name of the module's `state_dict`."""
    folder: Path | None = None
    """Where all of it is, if it is anywhere."""

    def __repr__(self) -> str:
        about = self.summary
        reached = ", ".join(f"{name}={about[name]:.5g}" for name in ("accuracy", "loss") if name in about)
        what = f"{about['label']!r} on {about['dataset']!r}, {about['rounds']} rounds"
        return f"Result({what}: {reached}, upload_bytes={about['upload_bytes']:.0f})"


def run(
    method: str | None = None,
    *,
    spec: File | None = None,
    out: File | None = None,
    resume: bool = False,
    workers: int = 1,
    checkpoint_every: int = 1,
    callbacks: Sequence[Callback | Watch] = (),
    track: Sequence[str] = (),
    **settings: Any,
) -> Result:
    """Train with one method, as the command `fedsparq run` does.

    ``settings`` are the command's options by their names, ``dataset="mnist-mini"``, ``rounds=3``, ``lr=0.3``, and any
    other key of a spec; those of the method itself are ``options={"multiplier": 2}``. A TOML file as ``spec`` is what
    they override. Without ``out``, the run is in a temporary folder, and gone when this returns. A callback is a
    function that is called with each round, or a `fedsparq.Callback`.
    """
    _need("torch", "pandas")
    given = settings | ({} if method is None else {"method": method})
    chosen = load_run(None if spec is None else Path(spec), to_spec_table(given))
    check_names_early(chosen)
    from fedsparq.lab.experiments.run import run as play

    with _folder(out) as folder:
        told = [*callbacks, *trackers(track)]
        done = play(chosen, folder, resume=resume, workers=workers, checkpoint_every=checkpoint_every, callbacks=told)
        rounds = round_table(RunFolder(folder).rounds(chosen.rounds))
        return Result(done, rounds, load_file(folder / "model.safetensors"), None if out is None else folder)


def compare(
    spec: File | None = None,
    *,
    methods: Sequence[str | Mapping[str, Any]] | None = None,
    partitions: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    out: File | None = None,
    workers: int = 1,
    jobs: int = 1,
    callbacks: Callable[[RunSpec], Sequence[Callback | Watch]] = lambda spec: (),
    track: Sequence[str] = (),
    **settings: Any,
) -> DataFrame:
    """Run methods x partitions x seeds, as the command `fedsparq compare` does; a row for each run.

    ``spec`` is a TOML file or the name of a bundled spec; what else is given overrides it. ``callbacks`` makes those of
    each run. A run that failed has its reason in the column ``error``, and nothing in those of its results.
    """
    _need("torch", "pandas")
    from pandas import DataFrame

    from fedsparq.lab.experiments.sweep import sweep

    lists = {"methods": methods, "partitions": partitions, "seeds": seeds}
    given = to_spec_table(settings) | {key: list(value) for key, value in lists.items() if value is not None}
    chosen = (compare_of({}, given) if spec is None else load_compare(locate(str(spec)), given)).runs()
    for each in chosen:
        check_names_early(each)
    follow = lambda spec: Callbacks([*callbacks(spec), *trackers(track)])  # noqa: E731
    with _folder(out) as folder:
        outcomes = sweep(chosen, folder, workers=workers, jobs=jobs, callbacks=follow)
    rows = [
        _row(outcome.spec, outcome.summary or {})
        | {"error": outcome.error, "folder": "" if out is None else str(outcome.folder)}
        for outcome in outcomes
    ]
    return DataFrame(rows)


def round_table(rounds: Sequence[Round]) -> DataFrame:
    """Rounds as a table: their numbers, what else the task measured, and the seconds of each part."""
    from pandas import DataFrame

    numbers = ("round", "accuracy", "loss", "upload_bytes", "download_bytes", "upload_bytes_paper", "kept", "clients")
    rows = [
        {key: getattr(record, key) for key in numbers}
        | dict(record.metrics)
        | {"events": len(record.events)}
        | {f"{part}_seconds": value for part, value in record.seconds.items()}
        for record in rounds
    ]
    return DataFrame(rows)


def _row(spec: RunSpec, summary: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {"label": spec.label, "method": spec.method, "dataset": spec.dataset, "model": spec.model}
    facts |= {"partition": spec.partition_label, "seed": spec.seed, "clients": spec.clients, "rounds": spec.rounds}
    reached = ("accuracy", "loss", "upload_bytes", "download_bytes", "upload_bytes_paper", "kept")
    return facts | {key: summary.get(key, math.nan) for key in reached} | dict(summary.get("metrics", {}))


@contextmanager
def _folder(out: File | None) -> Iterator[Path]:
    if out is not None:
        yield Path(out)
        return
    with TemporaryDirectory(prefix="fedsparq-") as folder:
        yield Path(folder) / "run"


def _need(*modules: str) -> None:
    for name in modules:
        if find_spec(name) is None:
            raise MissingExtraError(f"this needs {name}: pip install 'fedsparq[lab]'")
