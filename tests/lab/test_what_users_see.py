"""What users of the laboratory see, by commands, files and public names alone: it stays while the code moves."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedsparq

pytest.importorskip("torch")

OLD = Path(__file__).parents[1] / "written_by_0_1_0"
SPEC = """
methods = ["fedavg", "fedsparq"]
partitions = ["dirichlet"]
alpha = 0.5
dataset = "mnist-mini"
model = "mlp"
clients = 3
rounds = 3

[training]
lr = 0.1
batch_size = 32
"""
REACHED = {"fedavg": (92.25, 0.272, 1_222_080), "fedsparq": (91.30, 0.288, 165_647)}
"""Accuracy, loss and bytes sent, of three rounds of specs/quickstart.toml."""

SUMMARY: dict[str, type | tuple[type, ...]] = {
    "method": str,
    "label": str,
    "options": dict,
    "dataset": str,
    "model": str,
    "partition": str,
    "seed": int,
    "rounds": int,
    "clients": int,
    "accuracy": float,
    "loss": float,
    "metrics": dict,
    "upload_bytes": float,
    "download_bytes": float,
    "upload_bytes_paper": float,
    "kept": float,
    "parameters": int,
    "train_examples": int,
    "note": str,
    "seconds": dict,
}
ROUND = {
    "round": int,
    "accuracy": float,
    "loss": float,
    "upload_bytes": float,
    "download_bytes": float,
    "upload_bytes_paper": float,
    "kept": float,
    "kept_layers": dict,
    "clients": int,
    "events": list,
    "seconds": dict,
}
RUN_OPTIONS = """
--aggregator --aggregator-option --alpha --augment --batch-size --budget --client-column --clients --clip --dataset
--dataset-option --delta --device --downlink --engine --epochs --epsilon --example-clip --first-model --fraction
--label-column --lr --method --model --model-option --optimizer --optimizer-option --option --out --partition --resume
--rounds --sampling --secure-sums --seed --steps --task --task-option --test-limit --track --train-limit --window
--workers
"""
OPTIONS = {
    "run": f"{RUN_OPTIONS} --checkpoint-every",
    "compare": f"{RUN_OPTIONS} --jobs",
    "deploy": f"{RUN_OPTIONS.replace('--resume', '').replace('--track', '').replace('--workers', '')} --submit",
    "report": "--out --title --paper --figures --watch",
    "reproduce": "--only --scale --seeds --out --workers --jobs",
    "inspect": "--layout",
    "compress": "--method --residual --option --threads",
    "apply": "--out --threads --weight",
    "restore": "--residual",
    "states": "--folder --remove",
}


def fedsparq_says(*words: object, folder: Path | None = None) -> str:
    """What a command writes to its standard output; an error if it fails."""
    command = [sys.executable, "-m", "fedsparq", *map(str, words)]
    environment = os.environ | {"COLUMNS": "160", "TERM": "dumb"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder of two runs, and what `compare` said of them."""
    folder = tmp_path_factory.mktemp("compared")
    (folder / "small.toml").write_text(SPEC)
    said = fedsparq_says("compare", "small.toml", "--out", "runs", folder=folder)
    return folder / "runs", said


def run_folder(compared: tuple[Path, str], method: str) -> Path:
    (folder,) = compared[0].glob(f"*-{method}-*")
    return folder


@pytest.mark.parametrize("method", REACHED)
def test_the_table_has_these_numbers(compared: tuple[Path, str], method: str) -> None:
    accuracy, loss, sent = REACHED[method]
    summary = json.loads((run_folder(compared, method) / "summary.json").read_text())
    assert summary["accuracy"] == pytest.approx(accuracy, abs=0.1)
    assert summary["loss"] == pytest.approx(loss, abs=0.005)
    assert summary["upload_bytes"] == pytest.approx(sent, rel=1e-3)
    (row,) = (line for line in compared[1].splitlines() if re.search(rf"^\W*{method} +\d", line))
    cells = re.split(r"\s{2,}", row.strip())
    assert cells[0] == method
    assert float(cells[1].removesuffix("%")) == pytest.approx(summary["accuracy"], abs=0.005)
    assert cells[2] == f"{summary['loss']:.3f}"
    assert ("1.22 MB" if method == "fedavg" else "166 kB") in cells


def test_a_run_folder_has_these_files_and_keys(compared: tuple[Path, str]) -> None:
    folder = run_folder(compared, "fedsparq")
    assert folder.name == "mnist-mini-mlp-dirichlet-0.5-fedsparq-seed0-rounds=3"
    files = {path.name for path in folder.iterdir()}
    assert files >= {"model.safetensors", "partition.json", "rounds.jsonl", "spec.toml", "state", "summary.json"}
    summary = json.loads((folder / "summary.json").read_text())
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for table, types in [(summary, SUMMARY), *((record, ROUND) for record in rounds)]:
        for key, kind in types.items():
            assert isinstance(table[key], kind), key
    assert [record["round"] for record in rounds] == [1, 2, 3]
    assert summary["upload_bytes"] == sum(record["upload_bytes"] for record in rounds)
    assert set(summary["seconds"]) == {"train", "compress", "aggregate", "evaluate"}
    counts = json.loads((folder / "partition.json").read_text())
    assert (len(counts["classes"]), np.sum(counts["counts"])) == (10, 10_000)
    spec = tomllib.loads((folder / "spec.toml").read_text())
    assert (spec["method"], spec["partition"], spec["training"]["lr"]) == ("fedsparq", "dirichlet", 0.1)
    shapes = {name: array.shape for name, array in load_file(folder / "model.safetensors").items()}
    assert shapes == {"fc1.weight": (128, 784), "fc1.bias": (128,), "fc2.weight": (10, 128), "fc2.bias": (10,)}


def test_the_report_is_one_page_with_these_sections(compared: tuple[Path, str]) -> None:
    page = (compared[0] / "report.html").read_text()
    assert str(Path("runs", "report.html")) in compared[1]
    for heading in ("The answer", "Accuracy for bytes sent", "Test accuracy", "Test loss"):
        assert re.search(rf"<h[23][^>]*>\s*{heading}", page), heading
    assert "Dirichlet(0.5)" in page
    assert "92.25" in page
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=.?https?:", page)


def test_a_report_about_run_folders(compared: tuple[Path, str], tmp_path: Path) -> None:
    fedsparq_says("report", compared[0], "-o", tmp_path / "page.html", "--title", "Two methods")
    assert "<title>Two methods" in (tmp_path / "page.html").read_text()


def test_what_is_finished_is_not_run_again(compared: tuple[Path, str]) -> None:
    files = {path: path.stat().st_mtime_ns for path in compared[0].glob("*/*.json*")}
    said = fedsparq_says("compare", "small.toml", "--out", "runs", folder=compared[0].parent)
    assert said.count("finished before") == 2
    assert files == {path: path.stat().st_mtime_ns for path in compared[0].glob("*/*.json*")}


@pytest.mark.parametrize("command", OPTIONS)
def test_a_command_has_these_options(command: str) -> None:
    try:
        shown = fedsparq_says(command, "--help-all")
    except AssertionError:
        shown = fedsparq_says(command, "--help")
    assert set(OPTIONS[command].split()) <= set(re.findall(r"--[a-z][a-z-]*", shown))


def test_the_lists_name_everything() -> None:
    methods = fedsparq_says("methods")
    assert all(name in methods for name in ("fedavg", "fedsparq", "fedsparq-adaptive", "fedsparq-private", "stc"))
    datasets = fedsparq_says("datasets")
    assert all(name in datasets for name in ("mnist-mini", "mnist", "fashion-mnist", "cifar10", "shakespeare"))
    commands = fedsparq_says("--help")
    assert all(name in commands for name in (*OPTIONS, "methods", "datasets"))


def test_from_python_a_run_is_a_summary_a_table_and_a_model(tmp_path: Path) -> None:
    seen: list[int] = []
    result = fedsparq.run(
        "fedavg",
        rounds=2,
        train_limit=300,
        test_limit=100,
        lr=0.3,
        out=tmp_path / "run",
        callbacks=[lambda record: seen.append(record.round)],
    )
    assert seen == [1, 2]
    assert list(result.rounds["round"]) == [1, 2]
    assert {"accuracy", "loss", "upload_bytes", "download_bytes", "kept", "clients"} <= set(result.rounds)
    assert result.summary["rounds"] == 2
    assert result.model["fc1.weight"].shape == (128, 784)
    assert result.folder == tmp_path / "run"
    table = fedsparq.compare(methods=["fedavg"], seeds=[0, 1], rounds=1, train_limit=300, test_limit=100)
    assert list(table["seed"]) == [0, 1]
    assert {"label", "partition", "accuracy", "upload_bytes", "error", "folder"} <= set(table)


def test_a_run_folder_of_0_1_0_is_shown(tmp_path: Path) -> None:
    shutil.copytree(OLD / "finished", tmp_path / "finished")
    fedsparq_says("report", "finished", "-o", "page.html", folder=tmp_path)
    assert "29.00" in (tmp_path / "page.html").read_text()
