"""Trackers, each through its own library and on a local folder; skipped where the library is missing."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from fedsparq.errors import MissingExtraError, RunError
from fedsparq.lab.experiments import trackers as tracking
from fedsparq.lab.experiments.run import run
from fedsparq.lab.experiments.trackers import trackers
from fedsparq.lab.specs import RunSpec, check

SPEC = check(RunSpec, {"rounds": 4, "train_limit": 300, "test_limit": 100, "method": "fedavg"})


class StopError(Exception):
    pass


def stop(record: Any) -> None:
    if record.round == 2:
        raise StopError


def play(folder: Path, name: str) -> dict[str, Any]:
    """A run that is interrupted when a round is saved of which the tracker has not heard, and resumed."""
    with pytest.raises(StopError):
        run(SPEC, folder, callbacks=[stop, *trackers([name])])
    summary = run(SPEC, folder, resume=True, callbacks=trackers([name]))
    run(SPEC, folder, callbacks=trackers([name]))
    return summary


def test_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    summary = play(tmp_path, "tensorboard")
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("upload_bytes")] == [1, 2, 3, 4]
    assert events.Scalars("accuracy")[-1].value == summary["accuracy"]
    assert sum(event.value for event in events.Scalars("upload_bytes")) == pytest.approx(summary["upload_bytes"])


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "small")
    monkeypatch.chdir(tmp_path)
    summary = play(tmp_path / "run", "mlflow")
    client = mlflow.MlflowClient()
    (kept,) = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert kept.info.status == "FINISHED"
    assert kept.info.run_name == "run"
    assert kept.data.params["training.lr"] == "0.1"
    assert kept.data.metrics["accuracy"] == summary["accuracy"]
    history = client.get_metric_history(kept.info.run_id, "upload_bytes")
    assert sorted(metric.step for metric in history) == [1, 2, 3, 4]


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    play(tmp_path, "wandb")
    name = (tmp_path / ".wandb-run").read_text()
    # W&B names a session's folder by the second: interrupted and resumed within one, both lie in the same folder
    assert 1 <= len(list(tmp_path.glob(f"wandb/offline-run-*-{name}/run-{name}.wandb"))) <= 2


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedsparq\[mlflow\]'"):
        trackers(["mlflow"])


class Failing(tracking.Callback):
    def __init__(self) -> None:
        self.heard = 0

    def round(self, record: Any) -> None:
        self.heard += 1
        raise OSError("the server is gone")


def test_a_tracker_that_fails_does_not_end_the_run(tmp_path: Path) -> None:
    failing = Failing()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        summary = run(SPEC, tmp_path, callbacks=[tracking._Guarded("mlflow", failing)])
    assert (summary["rounds"], failing.heard) == (4, 1)
    assert any("mlflow tracks this run no more: OSError: the server is gone" in str(each.message) for each in caught)


def test_a_tracker_that_cannot_begin_is_an_error(tmp_path: Path) -> None:
    class Unable(tracking.Callback):
        def start(self, *_: Any) -> None:
            raise OSError("no such server")

    with pytest.raises(RunError, match="mlflow cannot track this run: OSError: no such server"):
        run(SPEC, tmp_path / "run", callbacks=[tracking._Guarded("mlflow", Unable())])
    assert not (tmp_path / "run").exists()
