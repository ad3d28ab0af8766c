"""Records of a run: its rounds, its description, and every measure computed from them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter

_Measure = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""In JSON, what is not a finite number is null."""
_Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Round:
    """One line of `rounds.jsonl`. Accuracy is in percent; NaN where the task does not measure it; bytes are means per
    selected client."""

    round: int
    accuracy: _Measure
    loss: _Measure
    upload_bytes: _Finite
    download_bytes: _Finite
    upload_bytes_paper: _Finite
    kept: _Finite
    kept_layers: Mapping[str, float] = field(default_factory=dict)
    clients: int = 0
    events: Sequence[Mapping[str, Any]] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, _Measure] = field(default_factory=dict)
    """Other metrics of the task, by name."""
    epsilon: float | None = None
    """Epsilon of a private run so far."""

    def to_json(self) -> str:
        """Return the line, with `metrics` and `epsilon` only where there are some."""
        measured: dict[str, Any] = {"accuracy": _finite(self.accuracy), "loss": _finite(self.loss)}
        measured |= {"metrics": {name: _finite(value) for name, value in self.metrics.items()}}
        absent = [name for name in ("metrics", "epsilon") if not getattr(self, name)]
        values = {key: value for key, value in (asdict(self) | measured).items() if key not in absent}
        return json.dumps(values, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> "Round":
        """Read a line; ValueError where it is not one."""
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
class RunInfo:
    """What was run: `facts.json`, and the descriptive half of `summary.json`."""

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
class Run(RunInfo):
    """A run, finished or unfinished. Every measure is computed from `rounds`."""

    folder: Path
    rounds: Sequence[Round]
    class_counts: ClassCounts | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)
    planned: int = 0
    """Rounds of the complete run."""

    @property
    def accuracy(self) -> float:
        return self.rounds[-1].accuracy

    @property
    def loss(self) -> float:
        return self.rounds[-1].loss

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
