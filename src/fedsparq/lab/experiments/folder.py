"""A run's folder: what is written while it runs, so that it can be interrupted at any moment and go on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as save_tensors

from fedsparq.archive import remove_scratch, write_safely
from fedsparq.errors import RunError
from fedsparq.federate.model import Model
from fedsparq.lab.experiments.callbacks import Callback
from fedsparq.lab.experiments.naming import differences
from fedsparq.lab.results.records import ClassCounts, Round
from fedsparq.lab.specs import RunSpec, read_spec
from fedsparq.layout import Layout

MOST_KEPT = 16_000_000
"""Checkpoint and client states of a finished run stay if they take no more bytes: then rounds can be added to it."""

_OURS = ("summary.json", "rounds.jsonl", "partition.json", "model.safetensors", "spec.toml")


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / "state"
        self.checkpoint = self.state / "server.safetensors"
        self.client_states = self.state / "clients"
        self.delayed = self.state / "delayed"
        """What was on its way after a round, where messages are made to go astray."""
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
        if changed:
            raise RunError(
                f"{self.path} holds a run of {spec.method!r} made when its default was {', '.join(changed)}; choose "
                "another --out, or remove it"
            )

    def retell(self, spec: RunSpec, told: Callback) -> dict[str, Any]:
        """Tell of a finished run as if it had just ended; its summary."""
        summary = self.summary()
        told.start(spec, self.path, self.rounds(spec.rounds))
        told.end(summary)
        return summary

    def start(self, spec: RunSpec, counts: tuple[Sequence[str], NDArray[np.int64]] | None) -> None:
        """Begin anew: nothing of an earlier run is left but what is not ours."""
        self.clear()
        write_safely(self.path / "spec.toml", spec.to_toml().encode())
        if counts is not None:
            about = ClassCounts(classes=counts[0], counts=counts[1].tolist())
            write_safely(self.path / "partition.json", json.dumps(asdict(about)).encode())

    def clear(self) -> None:
        for name in _OURS:
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
                f"{MOST_KEPT // 1_000_000} MB); choose another --out: the same first rounds come out again"
            )
        (self.path / "summary.json").unlink(missing_ok=True)
        write_safely(self.path / "spec.toml", spec.to_toml().encode())

    def ask(self, number: int) -> None:
        """Note, before any client is asked, that a round is opened."""
        asked = [*self._opened(), number]
        write_safely(self._asked, "".join(f"{each}\n" for each in asked).encode(), private=True)

    def asked_in_vain(self, done: int) -> int:
        """How often a round was opened without a record of it among the first `done`, as a crash leaves it: clients may
        have answered, each time with noise of its own."""
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
        """The rounds up to a checkpoint; lines behind it, whole or torn, are cut off."""
        path = self.path / "rounds.jsonl"
        lines = path.read_text(errors="replace").splitlines()[:until] if path.exists() else []
        try:
            rounds = [Round.from_json(line) for line in lines]
        except ValueError as error:
            damage = f"{path} is damaged before round {until} ({error})"
            raise RunError(f"{damage}; remove {self.path} to start anew") from error
        if [record.round for record in rounds] != list(range(1, until + 1)):
            raise RunError(f"{path} does not have the rounds 1 to {until}; remove {self.path} to start anew")
        return rounds

    def cut(self, until: int) -> list[Round]:
        """`rounds`, and the lines behind them are gone."""
        rounds, path = self.rounds(until), self.path / "rounds.jsonl"
        lines = path.read_text(errors="replace").splitlines()[:until] if path.exists() else []
        write_safely(path, "".join(f"{line}\n" for line in lines).encode())
        return rounds

    def finish(self, summary: dict[str, Any], model: Model, layout: Layout) -> None:
        """Write the model and the summary, and clear the checkpoints away unless they are small."""
        write_safely(self.path / "model.safetensors", save_tensors(layout.unflatten(model.vector, model.buffers)))
        write_safely(self.path / "summary.json", json.dumps(summary, indent=2, allow_nan=False).encode())
        for client in self.client_states.glob("client-*"):
            for path in sorted(client.iterdir(), key=_age)[1:]:
                path.unlink()
        if sum(path.stat().st_size for path in self.state.rglob("*")) > MOST_KEPT:
            shutil.rmtree(self.state, ignore_errors=True)

    def summary(self) -> dict[str, Any]:
        try:
            summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path / 'summary.json'} cannot be read: {error}") from error
        return summary

    def _spec(self) -> RunSpec:
        return read_spec(self.path / "spec.toml")


def _age(path: Path) -> int:
    """Sorts the files of a client, its newest state first."""
    return -int(path.stem) if path.suffix == ".safetensors" and path.stem.isdecimal() else 1
