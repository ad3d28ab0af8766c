"""Experiment trackers as callbacks, each through its own library: TensorBoard, MLflow, Weights & Biases.

A run that is resumed goes on in the tracker where it was, and no round is missing there.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

from fedsparq.archive import write_safely
from fedsparq.errors import MissingExtraError, OptionError, RunError, did_you_mean
from fedsparq.lab.experiments.callbacks import Callback, Relay, in_words
from fedsparq.lab.folder import flatten_keys
from fedsparq.lab.records import Round
from fedsparq.lab.specs import RunSpec

_PROJECT = "fedsparq"


def trackers(names: Iterable[str]) -> list[Callback]:
    """A callback for each tracker; an error for one that there is not, or whose library is missing."""
    made: list[Callback] = []
    for name in names:
        if name not in _TRACKERS:
            raise OptionError(
                f"there is no tracker {name!r}; {did_you_mean(name, _TRACKERS)}there is {', '.join(_TRACKERS)}"
            )
        if find_spec(name) is None:
            raise MissingExtraError(f"tracking by {name} needs its library: pip install 'fedsparq[{name}]'")
        made.append(_Guarded(name, _TRACKERS[name]()))
    return made


def figures(record: Round) -> dict[str, float]:
    """What trackers are told of a round; what is not a number is left out."""
    names = ("accuracy", "loss", "upload_bytes", "download_bytes", "kept", "clients")
    numbers = {name: float(getattr(record, name)) for name in names} | dict(record.metrics)
    numbers |= {f"seconds/{part}": value for part, value in record.seconds.items()}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


class _Guarded(Relay):
    """A tracker that cannot begin is an error before the first round; one that fails later is left out with a warning,
    and the run goes on. A finished run is not told of again."""

    def __init__(self, name: str, tracker: Callback) -> None:
        self._name, self._tracker, self._on = name, tracker, False

    def start(self, spec: RunSpec, folder: Path, behind: Sequence[Round]) -> None:
        if len(behind) == spec.rounds:
            return
        try:
            self._tracker.start(spec, folder, behind)
        except Exception as error:
            raise RunError(f"{self._name} cannot track this run: {in_words(error)}") from error
        self._on = True

    def relay(self, hook: str, *told: Any) -> None:
        if self._on:
            self._on = hook != "close"
            try:
                getattr(self._tracker, hook)(*told)
            except Exception as error:
                self._on = False
                warnings.warn(f"{self._name} tracks this run no more: {in_words(error)}", stacklevel=2)


class TensorBoard(Callback):
    """Event files in the run's folder: ``tensorboard --logdir runs``."""

    def start(self, spec: RunSpec, folder: Path, behind: Sequence[Round]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=0)
        self._writer.add_text("spec", f"```toml\n{spec.to_toml()}\n```")
        for record in behind:
            self.round(record)

    def round(self, record: Round) -> None:
        for name, value in figures(record).items():
            self._writer.add_scalar(name, value, record.round)

    def close(self) -> None:
        self._writer.close()


class MLflow(Callback):
    """A run of the experiment ``$MLFLOW_EXPERIMENT_NAME``, or ``fedsparq``, where ``$MLFLOW_TRACKING_URI`` says."""

    _status = "KILLED"

    def start(self, spec: RunSpec, folder: Path, behind: Sequence[Round]) -> None:
        import mlflow
        from mlflow.entities import Param

        self._client = mlflow.MlflowClient()
        self._id = _remembered(folder / ".mlflow-run")
        if self._id and behind:
            self._client.update_run(self._id, status="RUNNING")
            told = {metric.step for metric in self._client.get_metric_history(self._id, "upload_bytes")}
            for record in behind:
                if record.round not in told:
                    self.round(record)
            return
        experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT))
        self._id = self._client.create_run(experiment.experiment_id, run_name=folder.name).info.run_id
        write_safely(folder / ".mlflow-run", self._id.encode())
        params = [Param(key, str(value)[:500]) for key, value in flatten_keys(spec.model_dump(mode="json"))]
        for first in range(0, len(params), 100):
            self._client.log_batch(self._id, params=params[first : first + 100])

    def round(self, record: Round) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, record.round) for name, value in figures(record).items()]
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, summary: Mapping[str, Any]) -> None:
        self._status = "FINISHED"

    def fail(self, error: str) -> None:
        self._status = "FAILED"
        self._client.set_tag(self._id, "error", error)

    def close(self) -> None:
        self._client.set_terminated(self._id, self._status)


class WeightsAndBiases(Callback):
    """A run of the project ``$WANDB_PROJECT``, or ``fedsparq``; ``WANDB_MODE=offline`` keeps it in the run's folder."""

    _exit_code = 1

    def start(self, spec: RunSpec, folder: Path, behind: Sequence[Round]) -> None:
        import wandb

        known = _remembered(folder / ".wandb-run") if behind else ""
        name = known or uuid4().hex[:8]
        write_safely(folder / ".wandb-run", name.encode())
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=name,
            name=folder.name,
            dir=str(folder),
            config=spec.model_dump(mode="json"),
            resume="allow",
            reinit="create_new",
        )
        for record in behind:
            if record.round > self._run.step:
                self.round(record)

    def round(self, record: Round) -> None:
        self._run.log(figures(record), step=record.round)

    def end(self, summary: Mapping[str, Any]) -> None:
        self._exit_code = 0

    def close(self) -> None:
        self._run.finish(exit_code=self._exit_code)


_TRACKERS: dict[str, type[Callback]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}


def _remembered(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""
