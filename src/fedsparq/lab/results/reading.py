"""Find and read run folders. What cannot be read in full is named with its reason and left out."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from fedsparq.errors import RunError
from fedsparq.lab.folder import RunFolder
from fedsparq.lab.records import Run, RunInfo

_FILES = ("summary.json", "rounds.jsonl", "spec.toml")


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
    unscored: Sequence[Run] = ()
    """Finished runs of tasks without accuracy, which cannot be compared by it."""


def load_runs(paths: Sequence[Path], unfinished: bool = False) -> Runs:
    """Read every finished run at or below `paths`, in a stable order; list the damaged and unfinished ones.

    With `unfinished`, runs that have not ended yet count as well, as far as they are.
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
                run = RunFolder(folder).read(unfinished)
            except RunError as error:
                left_out.append(LeftOut(folder, str(error)))
                continue
            key = (*(str(getattr(run, field.name)) for field in fields(RunInfo)), len(run.rounds))
            twin = runs.setdefault(key, run)
            if twin is not run:
                left_out.append(LeftOut(folder, f"the same run as {twin.folder}, which is the one shown"))
            elif math.isnan(run.accuracy):
                left_out.append(LeftOut(folder, "its task reports no accuracy"))
    scored = tuple(run for run in runs.values() if not math.isnan(run.accuracy))
    return Runs(scored, tuple(left_out), tuple(run for run in runs.values() if run not in scored))


def _run_folders(path: Path) -> Iterator[Path]:
    """Yield run folders at or below `path`; what lies inside a run folder belongs to it."""
    for name, subfolders, files in os.walk(path):
        subfolders.sort()
        if not set(files).isdisjoint(_FILES):
            subfolders.clear()
            yield Path(name)
