"""A run's folder: written while it runs, so that it can be interrupted at any moment and resumed; and read again.

Reading builds no method and imports no code: others may have written the folder.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from safetensors.numpy import save as save_tensors

from fedsparq.archive import remove_scratch, write_safely
from fedsparq.errors import FedSparQError, RunError
from fedsparq.federate.model import Model
from fedsparq.federate.store import DiskStore
from fedsparq.lab.records import ClassCounts, Round, Run, RunInfo
from fedsparq.lab.settings import slug
from fedsparq.lab.specs import RunSpec, read_spec
from fedsparq.layout import Layout

MAX_RETAINED_BYTES = 16_000_000
"""Checkpoint and client states of a finished run stay up to this size: then rounds can be added to it."""
_MAX_TEXT_BYTES = 1 << 28
_RUN_FILES = ("summary.json", "rounds.jsonl", "facts.json", "partition.json", "model.safetensors", "spec.toml")
_MAX_NAME = 150
_IN_FOLDER_NAME = (
    *("method", "options", "aggregator", "aggregator_options", "optimizer", "optimizer_options", "task"),
    *("task_options", "seed", "downlink", "acknowledge", "variant"),
)
"""Settings that `RunSpec.folder_name` includes for every run."""
_ORDER = (
    *("dataset_options", "label_column", "client_column", "window", "augment", "dataset", "model", "model_options"),
    *("partition", "alpha", "shards_per_client", "clients", "fraction", "rounds", "train_limit", "test_limit"),
    *("budget", "client_budgets", "engine", "device", "note", "training", "server", "faults", "privacy", "first_model"),
)
"""The order of the other settings in a folder's name: a run is found again only by the same name."""
_OF_OUR_TASK = {"dataset", "model", "partition"}
_OF_PARTITIONS = {"dirichlet": "alpha", "shards": "shards_per_client"}
_SUMMARY, _INFO = TypeAdapter(dict[str, Any]), TypeAdapter(RunInfo)
_T = TypeVar("_T")


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / "state"
        self.checkpoint = self.state / "server.safetensors"
        self.client_states = self.state / "clients"
        self.delayed = self.state / "delayed"
        """Messages in transit after a round, where faults are simulated."""
        self._asked = path / "asked"
        """The number of each round of a private run, from before its clients are asked. No restart clears it."""

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").exists()

    @property
    def begun(self) -> bool:
        """Whether there is something in it that could be lost: one round at least, or what its clients were asked."""
        return self._asked.exists() or ((self.path / "spec.toml").exists() and (self.finished or self.rounds_done > 0))

    @property
    def rounds_done(self) -> int:
        path = self.path / "rounds.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def holds(self, spec: RunSpec) -> bool:
        """Whether this run is in here, finished; RunError if its method had other defaults when it was made."""
        if not self.finished or not self.begun or differences(self._spec(), spec):
            return False
        self._check_defaults(spec)
        return True

    def _check_defaults(self, spec: RunSpec) -> None:
        made, now = self.summary().get("options", {}), json.loads(json.dumps(dict(spec.chosen_method().options)))
        changed = [f"{key}={made[key]} (now {now[key]})" for key in made if key in now and made[key] != now[key]]
        if (down := self.summary().get("downlink", "none")) != spec.downlink_kind:
            changed.append(f"downlink={down} (now {spec.downlink_kind})")
        if changed:
            raise RunError(
                f"{self.path} holds a run of {spec.method!r} made when its default was {', '.join(changed)}; choose "
                "another --out, or remove it"
            )

    def read(self, unfinished: bool = False) -> Run:
        """Read the run; RunError names the file that is missing or damaged.

        An unfinished run is read as far as it is, if `unfinished`; its last line may be half-written.
        """
        spec = _spec_table(self.path / "spec.toml")
        if not self.finished:
            done = self.rounds_done
            if not unfinished:
                raise RunError(f"unfinished: no summary.json yet, {done} rounds so far")
            if not done:
                raise RunError("no round has ended yet")
            return self._run(self._facts(), spec, done)
        summary = _parse(_SUMMARY.validate_json, _text(self.path / "summary.json"), "summary.json")
        info = _parse(_INFO.validate_json, _text(self.path / "summary.json"), "summary.json")
        run = self._run(info, spec, None)
        if summary.get("rounds") != len(run.rounds):
            raise RunError(f"summary.json says {summary.get('rounds')} rounds, rounds.jsonl has {len(run.rounds)}")
        for name in ("accuracy", "upload_bytes"):
            stated, measured = summary.get(name), getattr(run, name)
            if stated is not None and not isinstance(stated, int | float):
                raise RunError(f"summary.json: {name} is {stated!r}; a number was expected")
            if stated is not None and not math.isclose(stated, measured, rel_tol=1e-9):
                raise RunError(f"summary.json says {name} = {stated!r}, rounds.jsonl gives {measured!r}")
        without = [record.round for record in run.rounds if math.isnan(record.accuracy)]
        if 0 < len(without) < len(run.rounds):
            raise RunError(f"rounds.jsonl line {without[0]}: accuracy is nan; a finite number was expected")
        if run.upload_bytes <= 0:
            raise RunError("rounds.jsonl: not one byte was sent in the whole run")
        return run

    def _run(self, info: RunInfo, spec: Mapping[str, Any], rounds: int | None) -> Run:
        records = _records(self.path / "rounds.jsonl", rounds)
        planned = spec.get("rounds")
        return Run(
            **vars(info),
            folder=self.path,
            rounds=records,
            class_counts=_class_counts(self.path / "partition.json"),
            spec=spec,
            planned=len(records) if self.finished or not isinstance(planned, int) else max(planned, len(records)),
        )

    def _facts(self) -> RunInfo:
        """Return the description of an unfinished run; one begun before there was `facts.json` is named by its spec."""
        if (self.path / "facts.json").is_file():
            return _parse(_INFO.validate_json, _text(self.path / "facts.json"), "facts.json")
        begun, counts = self._spec(), _class_counts(self.path / "partition.json")
        words = [begun.method, *(f"{key}={value}" for key, value in begun.options.items())]
        return RunInfo(
            **{name: getattr(begun, name) for name in ("method", "dataset", "model", "seed", "clients", "note")},
            label=" ".join(words),
            partition=begun.partition_label,
            train_examples=sum(map(sum, counts.counts)) if counts else 0,
        )

    def start(
        self, spec: RunSpec, facts: Mapping[str, Any], counts: tuple[Sequence[str], NDArray[np.int64]] | None
    ) -> None:
        """Begin a run; the files of an earlier one are removed."""
        self.clear()
        write_safely(self.path / "spec.toml", spec.to_toml().encode())
        write_safely(self.path / "facts.json", json.dumps(facts, indent=2).encode())
        if counts is not None:
            about = ClassCounts(classes=counts[0], counts=counts[1].tolist())
            write_safely(self.path / "partition.json", json.dumps(asdict(about)).encode())

    def clear(self) -> None:
        for name in _RUN_FILES:
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.state, ignore_errors=True)

    def reopen(self, spec: RunSpec, resume: bool) -> None:
        """Go on with what was begun, to as many rounds as the spec says; RunError if it is something else."""
        begun, done = self._spec(), self.rounds_done
        changed = differences(begun, spec)
        rounds = changed.pop("rounds", None)
        if changed:
            told = ", ".join(f"{key} = {old!r} (now {new!r})" for key, (old, new) in changed.items())
            raise RunError(f"{self.path} holds a run with {told}; choose another --out, or remove it")
        if not self.finished and not resume:
            raise RunError(f"{self.path} holds an unfinished run; add --resume to go on, or choose another --out")
        if self.finished:
            self._check_defaults(spec)
        elif self._asked.exists() and not self.checkpoint.exists():
            raise RunError(f"{self.path} holds a private run whose checkpoint is gone; choose another --out")
        if (before := self.state / "asked").exists():  # where it was in a run that an earlier version began
            os.replace(before, self._asked)
        remove_scratch(self.path)
        if rounds is None:
            return
        if spec.rounds < done:
            raise RunError(f"{self.path} has {done} rounds already, and now {spec.rounds}; choose another --out")
        if spec.privacy.epsilon is not None:
            raise RunError(
                f"{self.path} holds a run whose noise was made for {begun.rounds} rounds; choose another --out"
            )
        if any("/run" in budget for budget in (spec.budget, *spec.client_budgets.values())):
            raise RunError(
                f"{self.path} holds a run of {begun.rounds} rounds over which its budget was shared out; "
                "choose another --out for a run with more"
            )
        if self.finished and not self.checkpoint.exists():
            raise RunError(
                f"{self.path} holds a finished run of {done} rounds whose state was not kept (it is, up to "
                f"{MAX_RETAINED_BYTES // 1_000_000} MB); choose another --out: the same first rounds come out again"
            )
        (self.path / "summary.json").unlink(missing_ok=True)
        write_safely(self.path / "spec.toml", spec.to_toml().encode())

    def ask(self, number: int) -> None:
        """Note, before any client is asked, that a round is opened."""
        asked = [*self._opened(), number]
        write_safely(self._asked, "".join(f"{each}\n" for each in asked).encode(), private=True)

    def asked_in_vain(self, done: int) -> int:
        """Return how often a round was opened without a record of it among the first `done`, as a crash leaves it.

        Clients may have answered, each time with noise of its own.
        """
        opened = self._opened()
        return len(opened) - len({number for number in opened if number <= done})

    def _opened(self) -> list[int]:
        try:
            return [int(line) for line in self._asked.read_text().split()] if self._asked.exists() else []
        except ValueError as error:
            raise RunError(f"{self._asked} is damaged ({error}); choose another --out") from None

    def append(self, record: Round) -> None:
        """Add a round's line."""
        path = self.path / "rounds.jsonl"
        try:
            with path.open("a") as file:
                file.write(record.to_json() + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"could not write {path}: {error.strerror}; --resume goes on") from error

    def complete(self, line: str, number: int) -> None:
        """Add the line of round `number` where a crash came between the checkpoint that holds it and this file."""
        path = self.path / "rounds.jsonl"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        if len(lines) < number or lines[number - 1] != line:
            write_safely(path, "".join(f"{each}\n" for each in [*lines[: number - 1], line]).encode())

    def rounds(self, until: int) -> list[Round]:
        """Read the rounds up to a checkpoint; lines after it, complete or torn, are ignored."""
        try:
            return list(_records(self.path / "rounds.jsonl", until)) if until else []
        except RunError as error:
            raise RunError(f"{self.path}: {error}; remove it to start again") from error

    def cut(self, until: int) -> list[Round]:
        """Read the rounds up to a checkpoint, and remove the lines after it."""
        rounds, path = self.rounds(until), self.path / "rounds.jsonl"
        lines = path.read_text(errors="replace").splitlines()[:until] if path.exists() else []
        write_safely(path, "".join(f"{line}\n" for line in lines).encode())
        return rounds

    def finish(self, summary: dict[str, Any], model: Model, layout: Layout) -> None:
        """Write the model and the summary, and clear the checkpoints away unless they are small."""
        write_safely(self.path / "model.safetensors", save_tensors(layout.unflatten(model.vector, model.buffers)))
        write_safely(self.path / "summary.json", json.dumps(summary, indent=2, allow_nan=False).encode())
        DiskStore(self.client_states).keep_newest()
        if sum(path.stat().st_size for path in self.state.rglob("*")) > MAX_RETAINED_BYTES:
            shutil.rmtree(self.state, ignore_errors=True)

    def summary(self) -> dict[str, Any]:
        return _parse(_SUMMARY.validate_json, _text(self.path / "summary.json"), str(self.path / "summary.json"))

    def _spec(self) -> RunSpec:
        return read_spec(self.path / "spec.toml")


def run_name(spec: RunSpec) -> str:
    """Return a folder's name: `RunSpec.folder_name`, and every other setting that is not the default.

    A name that would be too long ends in a digest instead.
    """
    named = {*_IN_FOLDER_NAME}
    if spec.task == RunSpec.model_fields["task"].default:
        named |= {*_OF_OUR_TASK, _OF_PARTITIONS.get(spec.partition, "partition")}
    table = spec.model_dump(mode="json", exclude_defaults=True, exclude=named)
    other = flatten_keys({key: table[key] for key in sorted(table, key=_ORDER.index)})
    name = slug("-".join([spec.folder_name, *(f"{key.rpartition('.')[2]}={value}" for key, value in other)]))
    if len(name) > _MAX_NAME:
        digest = blake2b(spec.model_dump_json().encode(), digest_size=4).hexdigest()
        name = f"{name[: _MAX_NAME - 9]}-{digest}"
    return name.lstrip(".-")


def run_folder(out: Path, spec: RunSpec) -> Path:
    """Return the folder of a run under `out`: by its `RunSpec.folder_name` alone, as in 0.1.0, where that exists."""
    former = out / spec.folder_name
    begun = saved_spec(former)
    return former if begun is not None and not differences(begun, spec) else out / run_name(spec)


def saved_spec(folder: Path) -> RunSpec | None:
    """Return the spec of a folder; None where there is none that can be read."""
    path = folder / "spec.toml"
    try:
        return read_spec(path) if path.is_file() else None
    except (FedSparQError, OSError):
        return None


def differences(old: RunSpec, new: RunSpec) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two runs differ, by their keys: `training.lr`."""
    before, now = dict(flatten_keys(old.model_dump(mode="json"))), dict(flatten_keys(new.model_dump(mode="json")))
    keys = dict.fromkeys([*now, *before])
    return {key: (before.get(key), now.get(key)) for key in keys if before.get(key) != now.get(key)}


def flatten_keys(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables, each by its keys joined with dots."""
    for key, value in table.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from flatten_keys(value, f"{name}.")
        else:
            yield name, value


def _records(path: Path, count: int | None) -> tuple[Round, ...]:
    """Read the rounds of a run, the first `count` where given; they are numbered from 1."""
    lines = _text(path).splitlines()[:count]
    if len(lines) < (count or 1):
        raise RunError(f"rounds.jsonl has {len(lines)} rounds, not {count}" if lines else "rounds.jsonl is empty")
    rounds = []
    for number, line in enumerate(lines, 1):
        record = _parse(Round.from_json, line, f"rounds.jsonl line {number}")
        if record.round != number:
            raise RunError(f"rounds.jsonl line {number} is round {record.round}; round {number} was expected")
        rounds.append(record)
    return tuple(rounds)


def _class_counts(path: Path) -> ClassCounts | None:
    if not path.is_file():
        return None
    counts = _parse(TypeAdapter(ClassCounts).validate_json, _text(path), path.name)
    if not counts.counts or any(len(row) != len(counts.classes) for row in counts.counts):
        raise RunError("partition.json: one count for each class was expected in every row of counts")
    return counts


def _spec_table(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(_text(path)) if path.is_file() else {}
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RunError(f"spec.toml is not TOML: {error}") from error


def _text(path: Path) -> str:
    if not path.is_file():
        raise RunError(f"{path.name} is missing")
    try:
        if path.stat().st_size > _MAX_TEXT_BYTES:
            raise RunError(f"{path.name} has {path.stat().st_size} bytes, more than {_MAX_TEXT_BYTES}")
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
