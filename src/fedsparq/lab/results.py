"""Runs side by side: read from their folders or from a CSV file, and compared where their setting is the same."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas import DataFrame

from fedsparq.errors import RunError
from fedsparq.lab.folder import RunFolder
from fedsparq.lab.names import DATASETS, METHODS, dataset_key, slug
from fedsparq.lab.records import Run, RunInfo

_NUM_PAPER_METHODS, _PAPER_CLIENTS = 6, 3
_RUN_FILES = ("summary.json", "rounds.jsonl", "spec.toml")
_MAX_CSV_BYTES = 1 << 28
_MIN_VARIANTS = 3
"""From this many variants of FedSparQ on, they explain the method and do not compete."""
_LEVEL_POINTS, _EQUAL_BYTES = 1.0, 0.01
"""Differences in accuracy and in bytes that count as none."""
_MEASURES = ["accuracy", "loss", "upload_bytes", "download_bytes", "upload_bytes_paper", "kept"]
_DERIVED = ["both_bytes", "robust1", "robust2", "times_less", "reach_bytes"]


class Setting(NamedTuple):
    """What must be equal before two methods may be compared."""

    dataset: str
    partition: str
    model: str
    clients: int
    rounds: int
    train_examples: int
    note: str

    @classmethod
    def of(cls, run: Run) -> Setting:
        dataset = dataset_key(run.dataset)
        return cls(dataset, run.partition, run.model, run.clients, run.planned, run.train_examples, run.note)

    @property
    def iid(self) -> bool:
        return self.partition.lower() == "iid"


_SETTING = list(Setting._fields)
_REQUIRED = [*_SETTING, "method", "label", "seed", "done", *_MEASURES]
_COUNTS = ["clients", "rounds", "train_examples", "seed", "done"]


class Spread(NamedTuple):
    """Mean and sample standard deviation over seeds; the deviation is NaN where it is not known."""

    mean: float
    std: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        series = pd.Series(values, dtype=float)
        finite = len(series) > 0 and all(map(math.isfinite, values))
        return cls(series.mean() if finite else math.nan, series.std() if finite else math.nan, len(series))

    def differs(self, other: Spread) -> bool:
        """Return whether the two ranges mean ± deviation do not meet."""
        widths = (0.0 if math.isnan(spread.std) else spread.std for spread in (self, other))
        return bool(abs(self.mean - other.mean) > sum(widths))


class Winners(NamedTuple):
    """Labels of the methods that send least among those as accurate as the best. Several: none of them won."""

    best: str
    level: list[str]
    least: list[str]
    blurred: list[str]
    """Clearly below the best in the mean, equal to it only because the seeds differ so much."""
    one_seed: bool
    """Some method was run with one seed, so that its spread is not known."""
    times_less: float


@dataclass(frozen=True)
class Results:
    """Runs side by side. `skipped` names the folders that do not count, and why; `unscored` have no accuracy."""

    runs: Sequence[Run] = ()
    skipped: Sequence[tuple[Path, str]] = ()
    unscored: Sequence[Run] = ()
    rows: DataFrame | None = None
    """Rows that were read from CSV files."""

    @classmethod
    def read(cls, paths: Sequence[Path], unfinished: bool = False) -> Results:
        """Read every finished run at or below `paths`; a path that ends in .csv holds rows of `frame()`.

        With `unfinished`, runs that have not ended yet count as well, as far as they are.
        """
        runs: dict[tuple[object, ...], Run] = {}
        skipped: list[tuple[Path, str]] = []
        tables, seen = [], set[Path]()
        for path in map(Path, paths):
            if path.suffix == ".csv":
                tables.append(_read_csv(path))
                continue
            folders = list(_run_folders(path))
            if not folders:
                reason = "no run folder in here" if path.is_dir() else "no such folder"
                skipped.append((path, f"{reason}; a run folder holds {', '.join(_RUN_FILES)}"))
            for folder in folders:
                if folder.resolve() in seen:
                    continue
                seen.add(folder.resolve())
                try:
                    run = RunFolder(folder).read(unfinished)
                except RunError as error:
                    skipped.append((folder, str(error)))
                    continue
                key = (*(str(getattr(run, field.name)) for field in fields(RunInfo)), len(run.rounds))
                twin = runs.setdefault(key, run)
                if twin is not run:
                    skipped.append((folder, f"the same run as {twin.folder}, which is the one shown"))
                elif math.isnan(run.accuracy):
                    skipped.append((folder, "its task reports no accuracy"))
        scored = [run for run in runs.values() if not math.isnan(run.accuracy)]
        unscored = [run for run in runs.values() if math.isnan(run.accuracy)]
        return cls(scored, skipped, unscored, pd.concat(tables) if tables else None)

    def frame(self) -> DataFrame:
        """Return one row per run: setting, method, label, seed, rounds done and every measure."""
        made = DataFrame([_row(run) for run in self.runs])
        tables = [table for table in (made, self.rows) if table is not None and len(table)]
        return pd.concat(tables, ignore_index=True) if tables else DataFrame(columns=_REQUIRED)

    def rounds(self) -> DataFrame:
        """Return one row per run and round; `sent` is the upload so far."""
        found = [
            {**Setting.of(run)._asdict(), "label": run.label, "seed": run.seed, "round": record.round, "sent": sent}
            | {name: getattr(record, name) for name in _MEASURES}
            for run in self.runs
            for record, sent in zip(run.rounds, accumulate(r.upload_bytes for r in run.rounds), strict=True)
        ]
        return DataFrame(found, columns=[*_SETTING, "label", "seed", "round", "sent", *_MEASURES])

    def comparisons(self) -> list[Comparison]:
        """Group the runs by setting, in the paper's order."""
        frame, rounds = self.frame(), self.rounds()
        groups = {Setting(*key): rows for key, rows in frame.groupby(_SETTING, dropna=False)}
        played = {Setting(*key): rows for key, rows in rounds.groupby(_SETTING, dropna=False)}
        alike = Counter(setting._replace(model="") for setting in groups)
        found: list[Comparison] = []
        for setting in sorted(groups, key=lambda s: (_rank(s.dataset, list(DATASETS)), not s.iid, s)):
            name, taken = slug(f"{setting.dataset}-{setting.partition}"), {other.slug for other in found}
            if name in taken:
                name = slug(f"{name}-{setting.model}-{setting.clients}-clients-{setting.rounds}-rounds")
            while name in taken:
                name += "-b"
            runs = [run for run in self.runs if Setting.of(run) == setting]
            shows_model = alike[setting._replace(model="")] > 1
            found.append(Comparison(setting, name, shows_model, groups[setting], played.get(setting, rounds[:0]), runs))
        return found


@dataclass(frozen=True)
class Comparison:
    """The methods in one setting, by their labels."""

    setting: Setting
    slug: str
    shows_model: bool
    """Whether another setting differs from this one in the model alone."""
    rows: DataFrame
    played: DataFrame
    runs: Sequence[Run]

    @property
    def title(self) -> str:
        setting = self.setting
        partition = "IID" if setting.iid else setting.partition[:1].upper() + setting.partition[1:]
        model = f" · {setting.model}" if self.shows_model else ""
        return f"{DATASETS.get(setting.dataset, setting.dataset)} · {partition}{model}"

    @property
    def heading(self) -> str:
        """The title, with the number of clients where it is not the paper's."""
        clients = self.setting.clients
        return self.title if clients == _PAPER_CLIENTS else f"{self.title} · {clients} clients"

    @property
    def subtitle(self) -> str:
        """The title with the size of the runs, or the note of a shortened run."""
        return f"{self.title} · {self.setting.note or f'{self.setting.clients} clients, {self.setting.rounds} rounds'}"

    @property
    def privacy(self) -> str:
        """What private runs have spent, and what that does not cover; empty if none is private."""
        spent = [each for run in self.runs if (each := run.rounds[-1].epsilon) is not None]
        what = "bytes, times, coordinates sent, the clients of each round and counts of labels are not private"
        return f"epsilon {max(spent):.3g} is of the models alone: {what}" if spent else ""

    @cached_property
    def labels(self) -> list[str]:
        """Every method and variant."""
        order = list(METHODS)[:_NUM_PAPER_METHODS]
        return sorted(self.rows["label"].unique(), key=lambda label: (_rank(label.split(" ")[0], order), label))

    @cached_property
    def variants(self) -> list[str]:
        """FedSparQ with options of its own, where there are several."""
        found = [label for label in self.labels if label.startswith("fedsparq ")]
        return found if len(found) >= _MIN_VARIANTS else []

    @cached_property
    def main(self) -> list[str]:
        """The methods that compete; variants only where FedSparQ was not run without options."""
        return [label for label in self.labels if label not in self.variants or "fedsparq" not in self.labels]

    @cached_property
    def reference(self) -> str:
        """What savings are counted against: FedAvg, or else the method that sends most."""
        sent = self.rows.groupby("label")["upload_bytes"].mean()
        return "fedavg" if "fedavg" in self.main else str(sent[self.main].idxmax())

    @cached_property
    def measured(self) -> DataFrame:
        """One row per run, with the measures that are computed from others and from the reference."""
        rows = self.rows.copy()
        whole = rows.loc[rows["label"] == self.reference, "upload_bytes"].mean()
        rows["both_bytes"] = rows["upload_bytes"] + rows["download_bytes"]
        rows["robust1"], rows["robust2"] = rows["accuracy"] - rows["loss"], rows["accuracy"] / (rows["loss"] + 1e-8)
        rows["times_less"] = whole / rows["upload_bytes"]
        goals = [self.goal(seed) for seed in rows["seed"]]
        rows["reach_bytes"] = [self._reach(*run) for run in zip(rows["label"], rows["seed"], goals, strict=True)]
        return rows

    def goal(self, seed: int) -> float:
        """FedAvg's final accuracy less half a point: with the same seed, or the mean where that seed was not run."""
        plain = self.rows[self.rows["label"] == "fedavg"]
        own = plain.loc[plain["seed"] == seed, "accuracy"]
        return float((own if len(own) else plain["accuracy"]).mean()) - 0.5

    def _reach(self, label: str, seed: int, goal: float) -> float:
        """Return the upload when the goal was first reached; NaN if it never was."""
        run = self.played[(self.played["label"] == label) & (self.played["seed"] == seed)]
        sent = run.loc[run["accuracy"] >= goal, "sent"]
        return float(sent.min()) if len(sent) else math.nan

    @cached_property
    def methods(self) -> DataFrame:
        """One row per method: mean, std and size over the seeds of each measure; NaN where a seed has none."""
        return _spreads(self.measured, ["label"], [*_MEASURES, *_DERIVED]).loc[self.labels]

    @cached_property
    def _spreads(self) -> dict[tuple[str, str], tuple[float, float, float]]:
        keys = [(label, measure) for label in self.labels for measure in (*_MEASURES, *_DERIVED)]
        values = self.methods.to_numpy(dtype=float).reshape(len(keys), 3)
        return {
            key: (float(mean), float(std), float(size)) for key, (mean, std, size) in zip(keys, values, strict=True)
        }

    @cached_property
    def curves(self) -> DataFrame:
        """One row per method and round, over the seeds that got so far."""
        return _spreads(self.played, ["label", "round"], ["sent", *_MEASURES])

    def spread(self, label: str, measure: str) -> Spread:
        mean, std, size = self._spreads[label, measure]
        return Spread(mean, std, int(size))

    def mean(self, label: str, measure: str) -> float:
        return self._spreads[label, measure][0]

    def curve(self, label: str, measure: str) -> list[Spread]:
        """Return one spread per round; none where the rounds were not kept."""
        if label not in self.curves.index.get_level_values(0):
            return []
        return [Spread(mean, std, int(size)) for mean, std, size in self.curves.loc[label][measure].to_numpy()]

    def seeds(self, label: str) -> list[int]:
        return sorted(map(int, self.rows.loc[self.rows["label"] == label, "seed"]))

    def runs_of(self, label: str) -> list[Run]:
        return sorted((run for run in self.runs if run.label == label), key=lambda run: run.seed)

    def progress(self, label: str) -> str:
        """How far its runs are; empty when all are finished."""
        rows = self.rows[self.rows["label"] == label]
        done, planned = int(rows["done"].sum()), int(rows["rounds"].sum())
        return "" if done == planned else f"{done} of {planned} rounds"

    def pareto(self) -> list[str]:
        """Methods that no other beats on both bytes sent and accuracy, cheapest first."""
        front: list[str] = []
        best = -math.inf
        for label in sorted(self.main, key=lambda m: (self.mean(m, "upload_bytes"), -self.mean(m, "accuracy"))):
            if self.mean(label, "accuracy") > best:
                front.append(label)
                best = self.mean(label, "accuracy")
        return front

    def winners(self) -> Winners:
        """Return who sends least within a point of the best accuracy, or not told apart from it by the seeds."""
        accuracy = {label: self.spread(label, "accuracy") for label in self.main}
        sent = {label: self.spread(label, "upload_bytes") for label in self.main}
        best = max(self.main, key=lambda label: accuracy[label].mean)
        near = {label for label in self.main if accuracy[label].mean >= accuracy[best].mean - _LEVEL_POINTS}
        level = [label for label in self.main if label in near or not accuracy[label].differs(accuracy[best])]
        level.sort(key=lambda label: sent[label].mean)
        first = sent[level[0]]
        least = [
            label
            for label in level
            if not sent[label].differs(first) or sent[label].mean <= first.mean * (1 + _EQUAL_BYTES)
        ]
        blurred = [label for label in level if label not in near]
        one_seed = any(accuracy[label].n == 1 for label in level)
        ratio = self.mean(self.reference, "upload_bytes") / first.mean
        return Winners(best, level, least, blurred, one_seed, ratio)


def _row(run: Run) -> dict[str, Any]:
    faults = run.spec.get("faults")
    attack = ""
    if isinstance(faults, Mapping) and faults.get("hostile"):
        kinds = faults.get("hostile_kinds")
        attack = str(run.spec.get("variant") or ", ".join(map(str, kinds if isinstance(kinds, list) else ["any"])))
    rules = (str(run.spec.get(name) or "") for name in ("aggregator", "optimizer"))
    row = {**Setting.of(run)._asdict(), "method": run.method, "label": run.label}
    row |= {"aggregator": " + ".join(filter(None, rules)), "attack": attack, "seed": run.seed, "done": len(run.rounds)}
    row |= {name: getattr(run, name) for name in _MEASURES}
    return row | {f"metric.{name}": value for name, value in run.rounds[-1].metrics.items()}


def _read_csv(path: Path) -> DataFrame:
    """Read rows of `frame()`; RunError names the column that is missing or does not hold numbers."""
    try:
        if path.stat().st_size > _MAX_CSV_BYTES:
            raise RunError(f"{path} has {path.stat().st_size} bytes, more than {_MAX_CSV_BYTES}")
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read as CSV: {error}") from error
    for name in _REQUIRED:
        if name not in rows:
            raise RunError(f"{path} has no column {name!r}; `fedsparq report RUNS -o NAME.csv` writes such a file")
    for name in rows.columns:
        if name in _COUNTS or name in _MEASURES or name.startswith("metric."):
            try:
                rows[name] = rows[name].astype(int) if name in _COUNTS else rows[name].replace("", "nan").astype(float)
            except ValueError as error:
                raise RunError(f"{path}: a number was expected in each row of {name!r}: {error}") from error
    if not (rows["upload_bytes"] > 0).all() or not np.isfinite(rows["accuracy"]).all():
        raise RunError(f"{path}: upload_bytes must be above 0 and accuracy finite in each row")
    return rows


def _run_folders(path: Path) -> Iterator[Path]:
    """Yield run folders at or below `path`; what lies inside a run folder belongs to it."""
    for name, subfolders, found in os.walk(path):
        subfolders.sort()
        if not set(found).isdisjoint(_RUN_FILES):
            subfolders.clear()
            yield Path(name)


def _spreads(rows: DataFrame, by: list[str], measures: list[str]) -> DataFrame:
    groups = rows.replace([math.inf, -math.inf], math.nan).groupby(by)[measures]
    found, counts = groups.agg(["mean", "std", "size"]), groups.count()
    for measure in measures:
        found.loc[counts[measure] < found[measure, "size"], [(measure, "mean"), (measure, "std")]] = math.nan
    return found


def _rank(name: str, known: Sequence[str]) -> int:
    return known.index(name) if name in known else len(known)
