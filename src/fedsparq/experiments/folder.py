"""A run's folder: what is written while it runs, so that it can be interrupted at any moment and go on."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as save_tensors

from fedsparq.errors import RunError
from fedsparq.experiments.results import Round
from fedsparq.experiments.spec import RunSpec, check, read_toml
from fedsparq.federate.model import Model
from fedsparq.federate.store import write_safely
from fedsparq.layout import Layout


@dataclass(frozen=True)
class RunFolder:
    """Paths and files of one run."""

    path: Path

    @property
    def checkpoint(self) -> Path:
        return self.path / "state" / "server.safetensors"

    @property
    def client_states(self) -> Path:
        return self.path / "state" / "clients"

    @property
    def transit(self) -> Path:
        """What was on its way after a round, where messages are made to go astray."""
        return self.path / "state" / "transit"

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").exists()

    @property
    def started(self) -> bool:
        return (self.path / "spec.toml").exists()

    def start(self, spec: RunSpec) -> None:
        """Begin anew: nothing of an earlier run is left but what is not ours."""
        for name in ("summary.json", "rounds.jsonl", "partition.json", "model.safetensors"):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / "state", ignore_errors=True)
        write_safely(self.path / "spec.toml", spec.to_toml().encode())

    def check_spec(self, spec: RunSpec) -> None:
        """Refuse to go on with another experiment than the one that was begun."""
        begun = check(RunSpec, read_toml(self.path / "spec.toml"), str(self.path / "spec.toml"))
        new, old = spec.model_dump(), begun.model_dump()
        changed = [f"{key} = {old[key]!r} (now {new[key]!r})" for key in new if new[key] != old[key]]
        if changed:
            raise RunError(f"{self.path} holds a run with {', '.join(changed)}; choose another --out, or remove it")

    def write_partition(self, classes: tuple[str, ...], counts: NDArray[np.int64]) -> None:
        write_safely(self.path / "partition.json", json.dumps({"classes": classes, "counts": counts.tolist()}).encode())

    def append(self, record: Round) -> None:
        """Add a round's line."""
        try:
            with (self.path / "rounds.jsonl").open("a") as file:
                file.write(json.dumps(asdict(record)) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(
                f"could not write {self.path / 'rounds.jsonl'}: {error.strerror}; --resume goes on"
            ) from error

    def rounds(self, until: int) -> list[Round]:
        """The rounds up to a checkpoint; lines behind it, whole or torn, are cut off."""
        path = self.path / "rounds.jsonl"
        lines = path.read_text(errors="replace").splitlines()[:until] if path.exists() else []
        try:
            rounds = [Round(**json.loads(line)) for line in lines]
        except (ValueError, TypeError) as error:
            raise RunError(
                f"{path} is damaged before round {until} ({error}); remove {self.path} to start anew"
            ) from error
        if [record.round for record in rounds] != list(range(1, until + 1)):
            raise RunError(f"{path} does not have the rounds 1 to {until}; remove {self.path} to start anew")
        write_safely(path, "".join(line + "\n" for line in lines).encode())
        return rounds

    def finish(self, summary: dict[str, Any], model: Model, layout: Layout) -> None:
        """Write the model and the summary, and clear the checkpoints away."""
        write_safely(self.path / "model.safetensors", save_tensors(_named(model, layout)))
        write_safely(self.path / "summary.json", json.dumps(summary, indent=2).encode())
        shutil.rmtree(self.path / "state", ignore_errors=True)

    def summary(self) -> dict[str, Any]:
        try:
            summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path / 'summary.json'} cannot be read: {error}") from error
        return summary


def _named(model: Model, layout: Layout) -> dict[str, NDArray[np.generic]]:
    """The model's tensors by name, with their shapes."""
    arrays = {"parameter": model.vector}
    if model.exact is not None:
        arrays |= {"buffer": model.exact.buffers, "counter": model.exact.counters}  # type: ignore[dict-item]
    return {t.name: np.ascontiguousarray(arrays[t.role][t.span].reshape(t.shape)) for t in layout.tensors}
