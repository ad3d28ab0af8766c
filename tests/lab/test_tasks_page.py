"""docs/TASKS.md as it stands: every command, with two workers and in Flower's simulation."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from safetensors.numpy import load_file

pytest.importorskip("torch")
pytest.importorskip("datasets")

import fedsparq
from fedsparq import cli
from fedsparq.lab.engines.engine import Engine
from fedsparq.lab.experiments.run import run
from fedsparq.lab.specs import RunSpec, check, read_toml

DOC = Path(__file__).parents[2] / "docs" / "TASKS.md"
TEXT = DOC.read_text().replace("\\\n", " ")
COMMANDS = re.findall(r"^```sh\nfedsparq (.*?)\n```$", TEXT, re.MULTILINE)
LESS = ["--clients", "2", "--train-limit", "400", "--test-limit", "100"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder with the files of the page and the data that it speaks of."""
    for name, text in re.findall(r"^```python (\w+\.py)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(text)
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, 240)
    table = pd.DataFrame({"length": 5 * kinds + rng.normal(size=240), "width": rng.normal(size=240), "label": kinds})
    (tmp_path / "flowers").mkdir()
    table[:200].to_csv(tmp_path / "flowers" / "train.csv", index=False)
    table[200:].to_csv(tmp_path / "flowers" / "test.csv", index=False)
    for code, label in enumerate(("cat", "dog")):
        (tmp_path / "pets" / label).mkdir(parents=True)
        for number in range(50):
            pixels = rng.integers(0, 128, (24, 20), dtype=np.uint8)
            pixels[:, 10 * code : 10 * code + 10] += 100
            Image.fromarray(pixels).save(tmp_path / "pets" / label / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSPARQ_CACHE", str(tmp_path / "cache"))
    yield tmp_path
    for name in ("waves", "nets"):
        sys.modules.pop(name, None)


def command(dataset: str) -> list[str]:
    (found,) = [line for line in COMMANDS if f"--dataset {dataset} " in line]
    return shlex.split(found)


def called(words: list[str], *more: str, out: str) -> dict[str, Any]:
    """The summary of a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedsparq", *words, *more, "--out", out])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert not ended.value.code
    summary: dict[str, Any] = json.loads((Path(out) / "summary.json").read_text())
    return summary


def same_everywhere(words: list[str], ray: bool = False) -> dict[str, Any]:
    """The command with two workers; as an app of Flower's, or in Flower's simulation, the model must be the same."""
    pytest.importorskip("flwr")
    summary = called(words, "--workers", "2", out="two")
    spec = check(RunSpec, read_toml(Path("two/spec.toml")))
    if ray:
        run(spec.model_copy(update={"engine": "flower-simulation"}), Path("flower"))
    else:
        run(spec, Path("flower"), engine=in_process)
    ours, other = (load_file(f"{name}/model.safetensors") for name in ("two", "flower"))
    assert all(np.array_equal(ours[name], other[name]) for name in ours)
    return summary


def in_process(spec: RunSpec, task: object, states: Path) -> Engine:
    """Flower's client app, its messages carried in this process."""
    from fedsparq.lab.engines.grid import GridEngine
    from fedsparq.lab.engines.simulation import client_app
    from inprocess_grid import InProcessGrid

    grid = InProcessGrid([client_app(spec, states.resolve(), str(Path.cwd()))] * spec.clients)
    return GridEngine(grid, dict(enumerate(grid.get_node_ids())), strict=True)


def test_a_table_of_numbers_as_arrays(capsys: pytest.CaptureFixture[str]) -> None:
    summary = same_everywhere(command("waves:numbers"))
    assert summary["metrics"]["r2"] > 0.2
    assert summary["loss"] < 1.5
    assert not {"accuracy", "robust1", "robust2"} & {*summary, *summary["metrics"]}
    json.loads(Path("two/summary.json").read_text(), parse_constant=pytest.fail)
    assert " r2 " in capsys.readouterr().out


def test_a_folder_with_csv_files(caplog: pytest.LogCaptureFixture) -> None:
    summary = same_everywhere(command("./flowers"))
    assert summary["accuracy"] > 80
    assert "no test split" not in caplog.text


def test_images_of_24_by_20_and_a_users_own_model(caplog: pytest.LogCaptureFixture) -> None:
    summary = same_everywhere(command("./pets"))
    assert summary["accuracy"] > 80
    assert "./pets: there is no test split: a fifth of the examples" in caplog.text
    for model in ("mlp", "lenet5", "resnet18"):
        assert run(RunSpec(dataset="./pets", model=model, rounds=1, train_limit=20), Path(model))["rounds"] == 1


def test_shakespeare(real_datasets: Path) -> None:
    if not (real_datasets / "karpathy").is_dir():
        pytest.skip("shakespeare is not here")
    summary = same_everywhere([*command("shakespeare"), *LESS])
    assert summary["model"] == "char-lstm"
    assert summary["metrics"]["bits_per_character"] == pytest.approx(summary["loss"] / np.log(2))
    assert summary["loss"] < np.log(65)
    assert summary["parameters"] == 815_945


def test_a_comparison_without_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    Path("spec.toml").write_text('methods = ["fedavg", "float16"]\ndataset = "waves:numbers"\nrounds = 1\n')
    words = ["compare", "spec.toml", "--out", "all", "--dataset-option", "rows=300", "--model-option", "hidden=8"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedsparq", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert not ended.value.code
    assert "there is no report, as the task has no accuracy" in capsys.readouterr().out
    summaries = [json.loads(path.read_text()) for path in Path("all").glob("*/summary.json")]
    assert [summary["train_examples"] for summary in summaries] == [200, 200]
    result = fedsparq.run("fedavg", dataset="waves:numbers", rounds=1)
    assert "loss=" in repr(result)
    assert "accuracy=" not in repr(result)


@pytest.mark.slow
def test_all_of_them_in_flowers_simulation(real_datasets: Path) -> None:
    for dataset, more in {"waves:numbers": [], "./flowers": [], "./pets": [], "shakespeare": LESS}.items():
        shutil.rmtree("two", ignore_errors=True)
        shutil.rmtree("flower", ignore_errors=True)
        same_everywhere([*command(dataset), *more], ray=True)


def test_a_device() -> None:
    (words,) = [shlex.split(line) for line in COMMANDS if "--device" in line]
    assert called(words, out="here")["accuracy"] > 80
    spec = check(RunSpec, read_toml(Path("here/spec.toml")))
    assert spec.device == "auto"


def test_every_command_is_tried_here() -> None:
    assert len(COMMANDS) == 5
