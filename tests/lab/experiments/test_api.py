"""Experiments from Python: the same results as on the command line, by the same names; the page and the notebook."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pandas")

import fedsparq
from fedsparq import cli
from fedsparq.errors import OptionError

ROOT = Path(__file__).parents[3]
SMALL: dict[str, Any] = {"rounds": 2, "train_limit": 300, "test_limit": 100}


def test_a_run_gives_summary_rounds_and_model() -> None:
    result = fedsparq.run(method="fedsparq", dataset="mnist-mini", **SMALL)
    assert result.summary["rounds"] == 2
    assert list(result.rounds["round"]) == [1, 2]
    assert {"accuracy", "loss", "upload_bytes", "download_bytes", "kept", "clients"} <= set(result.rounds.columns)
    assert result.rounds["upload_bytes"].sum() == result.summary["upload_bytes"]
    assert {name: array.shape for name, array in result.model.items()}["fc1.weight"] == (128, 784)
    assert result.folder is None
    assert "fedsparq" in repr(result)


def test_options_of_the_command_line_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--clients", "4", "--lr", "0.3", "--seed", "3", "--steps", "2", "-o", "multiplier=2", "--rounds", "2"]
    words += ["--train-limit", "300", "--test-limit", "100", "--out", str(tmp_path / "command")]
    monkeypatch.setattr(sys, "argv", ["fedsparq", "run", *words])
    with pytest.raises(SystemExit):
        cli.main()
    own: dict[str, Any] = {"clients": 4, "lr": 0.3, "seed": 3, "steps": 2, "options": {"multiplier": 2}}
    result = fedsparq.run("fedsparq", **own, **SMALL, out=tmp_path / "python", workers=2)
    assert result.folder == tmp_path / "python"
    said = json.loads((tmp_path / "command" / "summary.json").read_text())
    assert {**result.summary, "seconds": 0} == {**said, "seconds": 0}
    files = [(tmp_path / name / "spec.toml").read_text() for name in ("command", "python")]
    assert files[0] == files[1]


def test_a_finished_run_is_read_and_rounds_are_added(tmp_path: Path) -> None:
    first = fedsparq.run("fedavg", out=tmp_path, **SMALL)
    again = fedsparq.run("fedavg", out=tmp_path, **SMALL)
    assert first.rounds.equals(again.rounds)
    assert all(np.array_equal(first.model[name], again.model[name]) for name in first.model)
    longer = fedsparq.run("fedavg", out=tmp_path, **SMALL | {"rounds": 3})
    assert longer.rounds.iloc[:2].equals(first.rounds)


def test_mistakes_are_errors_that_say_what_is_right() -> None:
    with pytest.raises(OptionError, match="clinets: there is no such key; did you mean 'clients'"):
        fedsparq.run("fedsparq", clinets=3)
    with pytest.raises(OptionError, match="unknown model"):
        fedsparq.run("fedsparq", model="transformer")
    with pytest.raises(OptionError, match="there is no tracker"):
        fedsparq.run("fedsparq", track=["paper"])
    with pytest.raises(OptionError, match="methods: it is needed"):
        fedsparq.compare(rounds=2)


class Listening(fedsparq.Callback):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def start(self, spec: Any, folder: Path, behind: Sequence[Any]) -> None:
        self.heard.append((spec.method, len(behind)))

    def round(self, record: Any) -> None:
        self.heard.append(record.round)

    def end(self, summary: Any) -> None:
        self.heard.append(summary["rounds"])

    def close(self) -> None:
        self.heard.append("close")


def test_callbacks() -> None:
    listening, accuracies = Listening(), []
    result = fedsparq.run("fedavg", callbacks=[listening, lambda record: accuracies.append(record.accuracy)], **SMALL)
    assert listening.heard == [("fedavg", 0), 1, 2, 2, "close"]
    assert accuracies == list(result.rounds["accuracy"])


@pytest.mark.parametrize("jobs", [1, 2])
def test_compare_is_a_table(tmp_path: Path, jobs: int) -> None:
    heard: dict[str, Listening] = {}

    def callbacks(spec: Any) -> list[Any]:
        heard[spec.method] = Listening()
        return [heard[spec.method]]

    table = fedsparq.compare(
        methods=["fedavg", {"name": "fedsparq", "options": {"multiplier": 2}}],
        **SMALL,
        seed=1,
        jobs=jobs,
        callbacks=callbacks,
    )
    assert list(table["label"]) == ["fedavg", "fedsparq multiplier=2.0"]
    assert list(table["error"]) == ["", ""]
    alone = fedsparq.run("fedavg", seed=1, **SMALL)
    row = table.iloc[0]
    assert (row["accuracy"], row["upload_bytes"]) == (alone.summary["accuracy"], alone.summary["upload_bytes"])
    assert heard["fedavg"].heard == [("fedavg", 0), 1, 2, 2, "close"]


def test_compare_by_a_bundled_spec_with_a_run_that_fails(tmp_path: Path) -> None:
    table = fedsparq.compare("quickstart", methods=["fedavg"], lr=1e30, out=tmp_path, **SMALL)
    assert table["accuracy"].isna().all()
    assert table["error"].str.len().min() > 0


def test_the_page_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "PYTHON.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "docs/PYTHON.md", "exec"), names)


def test_the_notebook_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())
    assert notebook["nbformat"] == 4
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5
    names: dict[str, Any] = {"__name__": "notebook"}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"docs/notebook.ipynb, code cell {number}", "exec"), names)
