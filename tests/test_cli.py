"""The command line as a person meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedsparq import cli


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of `fedsparq words...`."""
    monkeypatch.setattr(sys, "argv", ["fedsparq", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text('methods = ["fedavg", "fedsparq"]\nrounds = 2\ntrain_limit = 300\ntest_limit = 100\n')
    return str(path)


def test_compare_gives_tables_and_a_report_and_skips_what_is_finished(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert call(monkeypatch, "compare", tiny, "--out", str(out), "--rounds", "3") == 0
    shown = capsys.readouterr().out
    assert "fedavg" in shown
    assert "1/" in shown
    assert str(out / "report.html") in shown.replace("\n", "")
    summaries = sorted(out.glob("*/summary.json"))
    assert [json.loads(path.read_text())["rounds"] for path in summaries] == [3, 3]
    before = [path.stat().st_mtime_ns for path in summaries]
    assert call(monkeypatch, "compare", tiny, "--out", str(out), "--rounds", "3") == 0
    assert [path.stat().st_mtime_ns for path in summaries] == before


def test_run_takes_options_of_the_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text("train_limit = 300\ntest_limit = 100\nrounds = 5\n")
    words = ["run", str(spec), "--rounds", "1", "--lr", "0.3", "-o", "multiplier=2", "-o", "start=zero", "--seed", "3"]
    assert call(monkeypatch, *words, "--out", str(tmp_path / "out")) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["options"] == {"multiplier": 2.0, "start": "zero"}
    assert (summary["rounds"], summary["seed"]) == (1, 3)
    assert "lr = 0.3" in (tmp_path / "out" / "spec.toml").read_text()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--method", "nothing"], "there is no method 'nothing'; there is fedavg"),
        (["run", "-o", "multiplier"], "key=value"),
        (["run", "-o", "multiplier=big"], "it takes a number such as 1.0"),
        (["run", "--dataset", "nobody/nothing"], "nobody/nothing"),
        (["run", "--model", "transformer"], "transformer"),
        (["run", "--clients", "20000"], "client"),
        (["compare", "nowhere"], "quickstart"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_get_a_sentence_not_a_traceback(
    words: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert call(monkeypatch, *words) == 2
    error = capsys.readouterr().err
    assert error.startswith("fedsparq: ")
    assert expected in error
    assert "Traceback" not in error
    assert not (tmp_path / "runs").exists()


def test_catalogues(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "methods") == 0
    assert call(monkeypatch, "datasets") == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("fedsparq", "beta=0.9", "mnist-mini", "embedded"))


def test_import_is_light() -> None:
    code = "import sys, fedsparq; print([m for m in ('torch', 'flwr', 'matplotlib', 'datasets') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_missing_extra_is_named(tmp_path: Path) -> None:
    """With torch hidden, the command says what to install."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "fedsparq", "run"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 2
    assert "pip install 'fedsparq[torch]'" in done.stderr
    assert "Traceback" not in done.stderr
