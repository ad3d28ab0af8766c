"""Run folders, read back. What cannot be read in full is named with its reason and left out."""

import math
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from fedsparq.errors import FedSparQError, RunError
from fedsparq.lab.results.records import ClassCounts, LeftOut, Round, Run, RunFacts, Runs

_FILES = ("summary.json", "rounds.jsonl", "spec.toml")
_SENT = ("upload_bytes", "download_bytes", "upload_bytes_paper", "kept")
_T = TypeVar("_T")


def load_runs(paths: Sequence[Path], going: bool = False) -> Runs:
    """Every finished run at or below `paths`, in a stable order; the broken and half-written ones named beside it.

    With `going`, runs that have not ended yet count as well, as far as they are.
    """
    runs: dict[tuple[object, ...], Run] = {}
    left_out: list[LeftOut] = []
    seen: set[Path] = set()
    for path in map(Path, paths):
        folders = list(_run_folders(path))
        if not folders:
            reason = "no run folder in here" if path.is_dir() else "no such folder"
            left_out.append(LeftOut(path, f"{reason}; a run folder holds {', '.join(_FILES)}"))
        for folder in folders:
            if folder.resolve() in seen:
                continue
            seen.add(folder.resolve())
            try:
                begun = going and not (folder / "summary.json").is_file()
                run = load_going(folder) if begun else load_run(folder)
            except RunError as error:
                left_out.append(LeftOut(folder, str(error)))
                continue
            facts = (*(str(getattr(run, fact.name)) for fact in fields(RunFacts)), len(run.rounds))
            twin = runs.setdefault(facts, run)
            if twin is not run:
                left_out.append(LeftOut(folder, f"the same run as {twin.folder}, which is the one shown"))
            elif math.isnan(run.accuracy):
                left_out.append(LeftOut(folder, "its task reports no accuracy"))
    scored = tuple(run for run in runs.values() if not math.isnan(run.accuracy))
    return Runs(scored, tuple(left_out), tuple(run for run in runs.values() if run not in scored))


def load_run(folder: Path) -> Run:
    """One finished run. Raises RunError saying what is missing or wrong."""
    if not (folder / "summary.json").is_file():
        lines = folder / "rounds.jsonl"
        done = len(_text(lines).splitlines()) if lines.is_file() else 0
        raise RunError(f"unfinished: no summary.json yet, {done} rounds so far")
    text = _text(folder / "summary.json")
    facts = _parse(TypeAdapter(RunFacts).validate_json, text, "summary.json")
    run = Run(
        **vars(facts),
        folder=folder,
        rounds=_rounds(_lines(folder / "rounds.jsonl")),
        class_counts=_class_counts(folder / "partition.json"),
        spec=_spec(folder / "spec.toml"),
    )
    _check_agreement(run, _parse(TypeAdapter(dict[str, Any]).validate_json, text, "summary.json"))
    return run


def load_going(folder: Path) -> Run:
    """A run as far as it is; its last line may be half-written. Raises RunError before the first round has ended."""
    lines = folder / "rounds.jsonl"
    whole = _text(lines).rpartition("\n")[0].splitlines() if lines.is_file() else []
    if not whole:
        raise RunError("no round has ended yet")
    from fedsparq.lab.specs import load_run as load_spec  # slow to import, and finished runs do without
    from fedsparq.lab.specs import read_spec

    try:
        spec = read_spec(folder / "spec.toml")
        label = spec.label_as_given if spec.names_code else load_spec(folder / "spec.toml", {}).label
    except FedSparQError as error:
        raise RunError(f"spec.toml: {error}") from error
    counts = _class_counts(folder / "partition.json")
    return Run(
        method=spec.method,
        label=label,
        dataset=spec.dataset,
        model=spec.model,
        partition=spec.partition_label,
        seed=spec.seed,
        clients=spec.clients,
        train_examples=sum(map(sum, counts.counts)) if counts else 0,
        note=spec.note,
        folder=folder,
        rounds=_rounds(whole),
        class_counts=counts,
        spec=_spec(folder / "spec.toml"),
        planned_rounds=spec.rounds,
    )


def _run_folders(path: Path) -> Iterator[Path]:
    """Run folders at or below `path`; what lies inside a run folder belongs to it."""
    for name, subfolders, files in os.walk(path):
        subfolders.sort()
        if not set(files).isdisjoint(_FILES):
            subfolders.clear()
            yield Path(name)


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise RunError("rounds.jsonl is missing")
    lines = _text(path).splitlines()
    if not lines:
        raise RunError("rounds.jsonl is empty")
    return lines


def _rounds(lines: Sequence[str]) -> tuple[Round, ...]:
    rounds = [_parse(Round.from_json, line, _line(n)) for n, line in enumerate(lines, 1)]
    without = all(math.isnan(record.accuracy) for record in rounds)
    for number, record in enumerate(rounds, 1):
        if record.round != number:
            raise RunError(f"{_line(number)} is round {record.round}; round {number} was expected")
        for name in (*(() if without else ("accuracy",)), *_SENT):
            if not math.isfinite(getattr(record, name)):
                raise RunError(f"{_line(number)}: {name} is {getattr(record, name)}; a finite number was expected")
    return tuple(rounds)


def _line(number: int) -> str:
    return f"rounds.jsonl line {number}"


def _check_agreement(run: Run, summary: Mapping[str, Any]) -> None:
    if summary.get("rounds") != len(run.rounds):
        raise RunError(f"summary.json says {summary.get('rounds')} rounds, rounds.jsonl has {len(run.rounds)}")
    if run.upload_bytes <= 0:
        raise RunError("rounds.jsonl: not one byte was sent in the whole run")
    for name in ("accuracy", "loss", *_SENT):
        said, measured = summary.get(name), getattr(run, name)
        if said is None and not math.isfinite(measured):
            continue
        if not isinstance(said, int | float):
            raise RunError(f"summary.json: {name} is {said!r}; a number was expected")
        if not math.isclose(said, measured, rel_tol=1e-9) and not (math.isnan(said) and math.isnan(measured)):
            raise RunError(f"summary.json says {name} = {said!r}, rounds.jsonl gives {measured!r}")


def _class_counts(path: Path) -> ClassCounts | None:
    if not path.is_file():
        return None
    counts = _parse(TypeAdapter(ClassCounts).validate_json, _text(path), path.name)
    if not counts.counts or any(len(row) != len(counts.classes) for row in counts.counts):
        raise RunError("partition.json: one count for each class was expected in every row of counts")
    return counts


def _spec(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(_text(path)) if path.is_file() else {}
    except tomllib.TOMLDecodeError as error:
        raise RunError(f"spec.toml is not TOML: {error}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path.name} cannot be read: {error}") from error


def _parse(read: Callable[[str], _T], text: str, where: str) -> _T:
    try:
        return read(text)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise RunError(f"{where} is not JSON (cut off?): {first['msg']}") from error
        raise RunError(": ".join(filter(None, [where, ".".join(map(str, first["loc"])), first["msg"]]))) from error
