"""What a run leaves behind: its rounds, what was run, and every measure computed from them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter

_EPSILON = 1e-8
_Measure = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""In JSON, what is not a finite number is null."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One line of `rounds.jsonl`. Accuracy in percent; NaN what the task does not measure; bytes are means per client
    asked."""

    round: int
    accuracy: _Measure
    loss: _Measure
    upload_bytes: float
    download_bytes: float
    upload_bytes_paper: float
    kept: float
    kept_layers: Mapping[str, float] = field(default_factory=dict)
    clients: int = 0
    events: Sequence[Mapping[str, Any]] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, _Measure] = field(default_factory=dict)
    """What else the task measures, by name."""
    epsilon: float | None = None
    """What a private run has spent so far."""

    def to_json(self) -> str:
        """The line, with `metrics` and `epsilon` only where there are some."""
        measured: dict[str, Any] = {"accuracy": _finite(self.accuracy), "loss": _finite(self.loss)}
        measured |= {"metrics": {name: _finite(value) for name, value in self.metrics.items()}}
        absent = [name for name in ("metrics", "epsilon") if not getattr(self, name)]
        values = {key: value for key, value in (asdict(self) | measured).items() if key not in absent}
        return json.dumps(values, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> "Round":
        """A line read back; ValueError where it is not one."""
        return _ROUND.validate_json(line)


_ROUND = TypeAdapter(Round)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, kw_only=True)
class ClassCounts:
    """`partition.json`: how many examples of each class each client holds."""

    classes: Sequence[str]
    counts: Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class RunFacts:
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
class Run(RunFacts):
    """A run, finished or still going. Every measure is computed from `rounds`, so none drifts from `rounds.jsonl`."""

    folder: Path
    rounds: Sequence[Round]
    class_counts: ClassCounts | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)
    planned_rounds: int = 0
    """Those of a run that still goes on; a finished one has played them all."""

    @property
    def planned(self) -> int:
        return max(self.planned_rounds, len(self.rounds))

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
    unscored: Sequence[Run] = ()
    """Finished runs of tasks without accuracy, which are left out where methods are held against each other by it."""
