"""Run folders, read back. What cannot be read in full is named with its reason and left out."""

import json
import math
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from fedsparq.errors import RunError

_MARKS = ("summary.json", "rounds.jsonl", "spec.toml")
_EPSILON = 1e-8
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Round:
    """One line of `rounds.jsonl`. Accuracy in percent; bytes are means per client that took part."""

    round: int
    accuracy: float
    loss: float
    upload_bytes: float
    download_bytes: float
    upload_bytes_paper: float
    kept: float
    kept_layers: Mapping[str, float] = field(default_factory=dict)
    clients: int = 0
    events: Sequence[Mapping[str, Any]] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ClassCounts:
    """`partition.json`: how many examples of each class each client holds."""

    classes: Sequence[str]
    counts: Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What was run: the descriptive half of `summary.json`."""

    method: str
    label: str
    dataset: str
    model: str
    partition: str
    seed: int
    clients: int
    options: Mapping[str, Any] = field(default_factory=dict)
    parameters: int = 0
    train_examples: int = 0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Run(Identity):
    """A finished run. Every measure is computed from `rounds`, so nothing can drift away from `rounds.jsonl`."""

    folder: Path
    rounds: Sequence[Round]
    class_counts: ClassCounts | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        return self.rounds[-1].accuracy

    @property
    def loss(self) -> float:
        return self.rounds[-1].loss

    @property
    def robust1(self) -> float:
        return self.accuracy - self.loss

    @property
    def robust2(self) -> float:
        return self.accuracy / (self.loss + _EPSILON)

    @cached_property
    def upload_bytes(self) -> float:
        return math.fsum(r.upload_bytes for r in self.rounds)

    @cached_property
    def download_bytes(self) -> float:
        return math.fsum(r.download_bytes for r in self.rounds)

    @cached_property
    def upload_bytes_paper(self) -> float:
        return math.fsum(r.upload_bytes_paper for r in self.rounds)

    @cached_property
    def kept(self) -> float:
        return math.fsum(r.kept for r in self.rounds) / len(self.rounds)

    def bytes_to_reach(self, accuracy: float) -> float:
        """What a client had sent when the test accuracy first was so high; not a number if it never was."""
        sent = 0.0
        for record in self.rounds:
            sent += record.upload_bytes
            if record.accuracy >= accuracy:
                return sent
        return math.nan

    @property
    def is_variant(self) -> bool:
        """FedSparQ with at least one option away from its default."""
        return self.method == "fedsparq" and self.label != self.method


@dataclass(frozen=True)
class LeftOut:
    """A folder that was asked for and does not count, and why."""

    folder: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.reason}"


@dataclass(frozen=True)
class Runs:
    """What was found below the given paths."""

    runs: Sequence[Run]
    left_out: Sequence[LeftOut]


def load_runs(paths: Sequence[Path]) -> Runs:
    """Every finished run at or below `paths`, in a stable order; the broken and half-written ones named beside it."""
    runs: dict[tuple[object, ...], Run] = {}
    left_out: list[LeftOut] = []
    seen: set[Path] = set()
    for path in map(Path, paths):
        folders = list(_run_folders(path))
        if not folders:
            reason = "no run folder in here" if path.is_dir() else "no such folder"
            left_out.append(LeftOut(path, f"{reason}; a run folder holds {', '.join(_MARKS)}"))
        for folder in folders:
            if folder.resolve() in seen:
                continue
            seen.add(folder.resolve())
            try:
                run = load_run(folder)
            except RunError as error:
                left_out.append(LeftOut(folder, str(error)))
                continue
            twin = runs.setdefault(_key(run), run)
            if twin is not run:
                left_out.append(LeftOut(folder, f"the same run as {twin.folder}, which is the one shown"))
    return Runs(tuple(runs.values()), tuple(left_out))


def load_run(folder: Path) -> Run:
    """One finished run. Raises RunError saying what is missing or wrong."""
    if not (folder / "summary.json").is_file():
        lines = folder / "rounds.jsonl"
        done = len(_text(lines).splitlines()) if lines.is_file() else 0
        raise RunError(f"unfinished: no summary.json yet, {done} rounds so far")
    summary = _json(folder / "summary.json", _text(folder / "summary.json"))
    if not isinstance(summary, dict):
        raise RunError("summary.json: a JSON object was expected")
    identity = _valid(Identity, summary, "summary.json")
    rounds = _rounds(folder / "rounds.jsonl")
    counts = folder / "partition.json"
    run = Run(
        **vars(identity),
        folder=folder,
        rounds=rounds,
        class_counts=_class_counts(counts) if counts.is_file() else None,
        spec=_spec(folder / "spec.toml"),
    )
    _check_agreement(run, summary)
    return run


def _run_folders(path: Path) -> Iterator[Path]:
    """Run folders at or below `path`; what lies inside a run folder belongs to it."""
    for name, subfolders, files in os.walk(path):
        subfolders.sort()
        if any(mark in files for mark in _MARKS):
            subfolders.clear()
            yield Path(name)


def _key(run: Run) -> tuple[object, ...]:
    return (*(str(getattr(run, name.name)) for name in fields(Identity)), len(run.rounds))


def _rounds(path: Path) -> tuple[Round, ...]:
    if not path.is_file():
        raise RunError("rounds.jsonl is missing")
    lines = _text(path).splitlines()
    rounds = []
    for number, line in enumerate(lines, 1):
        where = f"rounds.jsonl line {number}"
        rounds.append(_valid(Round, _json(path, line, where), where))
        if rounds[-1].round != number:
            raise RunError(f"{where} is round {rounds[-1].round}; round {number} was expected")
        measured = rounds[-1]
        for name in ("accuracy", "upload_bytes", "download_bytes", "upload_bytes_paper", "kept"):
            if not math.isfinite(getattr(measured, name)):
                raise RunError(f"{where}: {name} is {getattr(measured, name)}; a finite number was expected")
    if not rounds:
        raise RunError("rounds.jsonl is empty")
    return tuple(rounds)


def _check_agreement(run: Run, summary: Mapping[str, Any]) -> None:
    if summary.get("rounds") != len(run.rounds):
        raise RunError(f"summary.json says {summary.get('rounds')} rounds, rounds.jsonl has {len(run.rounds)}")
    if run.upload_bytes <= 0:
        raise RunError("rounds.jsonl: not one byte was sent in the whole run")
    for name in ("accuracy", "loss", "upload_bytes", "download_bytes", "upload_bytes_paper", "kept"):
        said, measured = summary.get(name), getattr(run, name)
        if not isinstance(said, int | float):
            raise RunError(f"summary.json: {name} is {said!r}; a number was expected")
        if not math.isclose(said, measured, rel_tol=1e-9) and not (math.isnan(said) and math.isnan(measured)):
            raise RunError(f"summary.json says {name} = {said!r}, rounds.jsonl gives {measured!r}")


def _class_counts(path: Path) -> ClassCounts:
    counts = _valid(ClassCounts, _json(path, _text(path)), path.name)
    if not counts.counts or any(len(row) != len(counts.classes) for row in counts.counts):
        raise RunError("partition.json: one count for each class was expected in every row of counts")
    return counts


def _spec(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise RunError(f"spec.toml is not TOML: {error}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path.name} cannot be read: {error}") from error


def _json(path: Path, text: str, where: str | None = None) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise RunError(f"{where or path.name} is not JSON (cut off?): {error}") from error


def _valid(kind: type[_T], data: Any, where: str) -> _T:
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        field_name = ".".join(map(str, first["loc"]))
        raise RunError(f"{where}: {field_name}: {first['msg']}") from error
