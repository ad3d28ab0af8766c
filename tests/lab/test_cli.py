"""The command line as a person meets it."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import fedsparq
from fedsparq import cli
from fedsparq.cli.app import COMMANDS
from fedsparq.cli.settings import PARTS, setting_options
from fedsparq.lab.specs import RunSpec
from fedsparq.lab.specs.run import PRIVACY, TRAINING


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
    assert summary["label"] == "fedsparq multiplier=2.0 start=zero"
    assert (summary["options"]["multiplier"], summary["options"]["beta"]) == (2.0, 0.9)
    assert (summary["rounds"], summary["seed"]) == (1, 3)
    assert "lr = 0.3" in (tmp_path / "out" / "spec.toml").read_text()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--method", "nothing"], "there is no method 'nothing'; there is fedavg"),
        (["run", "-o", "multiplier"], "key=value"),
        (["run", "-o", "multiplier=big"], "it must be a number such as 1.0"),
        (["run", "--dataset", "nobody/nothing"], "nobody/nothing"),
        (["run", "--model", "transformer"], "transformer"),
        (["run", "--clients", "20000"], "client"),
        (["compare", "nowhere"], "quickstart"),
        (["report", "nowhere"], "nowhere"),
        (["run", "--seed", str(2**64)], "seed: input should be less than 18446744073709551616"),
        (["run", "--rounds", "1", "--out", "file"], "file cannot hold results: File exists; choose another --out"),
        (["run", "--rounds", "1", "--out", "file/below"], "file/below cannot hold results: Not a directory"),
        (
            ["compare", "methdo.toml"],
            "methdo.toml: methdo: there is no such key; did you mean 'methods'? there is name",
        ),
        (["compare", "row.toml"], "methods.0.optoins: there is no such key; did you mean 'options'? there is "),
        (["compare", "true.toml"], "true.toml: rounds: input should be a valid integer, got True"),
        (["run", "run.toml"], "run.toml: rounds: input should be a valid integer, got True"),
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
    (tmp_path / "file").touch()
    (tmp_path / "methdo.toml").write_text('methdo = ["fedavg"]\n')
    (tmp_path / "row.toml").write_text('methods = [{ name = "fedsparq", optoins = { beta = 0.5 } }]\n')
    (tmp_path / "true.toml").write_text('methods = ["fedavg"]\nrounds = true\n')
    (tmp_path / "run.toml").write_text("rounds = true\n")
    assert call(monkeypatch, *words) == 2
    error = capsys.readouterr().err
    assert error.startswith("fedsparq: ")
    assert expected in error
    assert "Traceback" not in error
    assert not (tmp_path / "runs").exists()


def test_other_settings_have_other_folders_and_rounds_can_be_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["run", "--train-limit", "300", "--test-limit", "100", "--method", "fedavg"]
    for more in (["--rounds", "1"], ["--rounds", "2"], ["--rounds", "1", "--lr", "0.3"]):
        assert call(monkeypatch, *small, *more) == 0
    name = "mnist-mini-mlp-iid-fedavg-seed0"
    made = [f"{name}-rounds=1-train-limit=300-test-limit=100", f"{name}-rounds=2-train-limit=300-test-limit=100"]
    made.append(f"{name}-rounds=1-train-limit=300-test-limit=100-lr=0.3")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(made)
    assert call(monkeypatch, *small, "--rounds", "2", "--out", f"runs/{made[0]}") == 0
    rounds = [(tmp_path / "runs" / folder / "rounds.jsonl").read_text().splitlines() for folder in made[:2]]
    strip = [[{**json.loads(line), "seconds": 0} for line in lines] for lines in rounds]
    assert strip[0] == strip[1]
    capsys.readouterr()
    assert call(monkeypatch, *small, "--rounds", "2", "--out", f"runs/{made[2]}") == 2
    assert "holds a run with training.lr = 0.3 (now 0.1); choose another --out" in capsys.readouterr().err


def test_compare_lists_failures_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.toml"
    rows = '["fedavg", { name = "fedsparq", variant = "wild" }, "float16"]'
    spec.write_text(f"methods = {rows}\nrounds = 2\ntrain_limit = 300\ntest_limit = 100\n[training]\nlr = 1e30\n")
    assert call(monkeypatch, "compare", str(spec), "--out", str(tmp_path / "out")) == 2
    error = capsys.readouterr().err
    assert error.startswith("fedsparq: 3 of 3 runs failed; the same command tries them again:\n  fedavg")
    assert "Traceback" not in error
    assert call(monkeypatch, "compare", str(spec), "--out", str(tmp_path / "out"), "--lr", "0.1", "--jobs", "2") == 0
    shown = capsys.readouterr().out
    assert "[3/3]" in shown
    assert "report.html" in shown


def test_a_report_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--rounds", "1", "--train-limit", "300", "--test-limit", "100"]
    assert call(monkeypatch, "run", *small, "--out", str(tmp_path / "run")) == 0
    (tmp_path / "file").touch()
    assert call(monkeypatch, "report", str(tmp_path / "run"), "-o", str(tmp_path / "file" / "page.html")) == 2
    assert f"fedsparq: could not write {tmp_path / 'file' / 'page.html'}" in capsys.readouterr().err

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    page = tmp_path / "page.html"
    assert call(monkeypatch, "report", str(tmp_path / "run"), "-o", str(page)) == 2
    assert f"could not write {page}: No space left on device" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["methods"], ["inspect", "m.fsq"]])
def test_standard_output_on_a_full_disk_is_a_sentence(words: list[str], tmp_path: Path) -> None:
    layout = fedsparq.Layout.of({"a": (4,)})
    (tmp_path / "m.fsq").write_bytes(fedsparq.encode(fedsparq.Payload.full(layout, np.ones(4, np.float32))))
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "fedsparq", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (2, "fedsparq: standard output: No space left on device\n")


def test_lost_client_states_are_said_on_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["run", "--train-limit", "300", "--test-limit", "100", "--out", str(tmp_path / "run")]
    assert call(monkeypatch, *small, "--rounds", "2") == 0
    shutil.rmtree(tmp_path / "run" / "state" / "clients" / "client-2")
    capsys.readouterr()
    assert call(monkeypatch, *small, "--rounds", "3") == 0
    shown = capsys.readouterr().out
    assert "client 2: its state is lost (there is none of round 2 or later); it goes on without its residual" in shown
    assert "not as undisturbed: state lost of client 2, after round 2" in shown


def test_every_setting_is_on_the_command_line_or_for_files_alone() -> None:
    files_alone = {"client_budgets", "acknowledge", "note", "variant", "server", "faults", "training", "privacy"}
    parts = {f"{part}_option" for part in PARTS}
    names = {str(option.name) for option in setting_options()}
    assert parts < names
    assert names - parts - {*TRAINING, *PRIVACY} == {*RunSpec.model_fields} - files_alone - {
        "options",
        *(f"{part}_options" for part in PARTS),
    }
    assert {*TRAINING, *PRIVACY} < names


@pytest.mark.parametrize("name", ["", *(name for _, names in COMMANDS.values() for name in names)])
def test_help_fits_a_terminal(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, *filter(None, [name]), "--help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("-") for line in lines)
    if "--help-all" in "".join(lines):
        assert call(monkeypatch, name, "--help-all") == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_setting_of_a_file_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text("train_limit = 300\ntest_limit = 100\nrounds = 1\n[privacy]\nsecure_sums = true\n")
    words = ["run", str(spec), "--method", "fedavg", "--no-secure-sums", "--out", str(tmp_path / "out")]
    assert call(monkeypatch, *words) == 0
    assert "secure_sums = false" in (tmp_path / "out" / "spec.toml").read_text()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rnu"], "did you mean 'run'?"),
        (["run", "--methdo", "fedavg"], "--method"),
        (["run", "quickstart"], "fedsparq compare quickstart"),
        (["run", "many.toml"], "fedsparq compare many.toml"),
        (["run", "--method", "fedsparc"], "did you mean 'fedsparq'?"),
        (["methods", "fedsparc"], "did you mean 'fedsparq'?"),
        (["run", "--dataset", "mnits"], "did you mean 'mnist'?"),
        (["run", "--model", "lenet"], "did you mean 'lenet5'?"),
        (["compare", "quikstart"], "did you mean 'quickstart'?"),
    ],
)
def test_what_was_meant(
    words: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "many.toml").write_text('methods = ["fedavg"]\n')
    assert call(monkeypatch, *words) == 2
    assert expected in capsys.readouterr().err


def test_a_method_is_described(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "methods", "fedsparq") == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("multiplier", "beta", "0.9"))
    for name in fedsparq.METHODS:
        assert call(monkeypatch, "methods", name) == 0


def test_inspect_shows_every_file_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--train-limit", "300", "--test-limit", "100", "--rounds", "1", "--out", str(tmp_path / "run")]
    assert call(monkeypatch, "run", *small) == 0
    (client, *_) = sorted((tmp_path / "run" / "state").glob("clients/client-0/*.safetensors"))
    for path, word in {
        tmp_path / "run" / "model.safetensors": "128 x 784",
        tmp_path / "run" / "state" / "server.safetensors": "version",
        client: "feedback.residual",
    }.items():
        capsys.readouterr()
        assert call(monkeypatch, "inspect", str(path)) == 0
        assert word in capsys.readouterr().out
    client.write_bytes(client.read_bytes()[:-1] + b"?")
    assert call(monkeypatch, "inspect", str(client)) == 2
    assert str(client) in capsys.readouterr().err


def test_inspect_shows_a_stream_and_its_residual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    update = {"a\x1b[2J": np.random.default_rng(0).normal(size=(4, 50)).astype(np.float32)}
    save_file(update, tmp_path / "update.safetensors")
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "compress", "update.safetensors", "--residual", "residual", "-o", "message") == 0
    for name, word in {"message": "of 200 coordinates", "residual": "origin", "update.safetensors": "F32"}.items():
        capsys.readouterr()
        assert call(monkeypatch, "inspect", name) == 0
        shown = capsys.readouterr().out
        assert word in shown
        assert "4 x 50" in shown
        assert "\x1b[2J" not in shown
    blob = bytearray((tmp_path / "message").read_bytes())
    blob[-9] ^= 1
    (tmp_path / "message").write_bytes(blob)
    assert call(monkeypatch, "inspect", "message") == 2


def test_catalogues(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "methods") == 0
    assert call(monkeypatch, "datasets") == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("fedsparq", "stc", "mnist-mini", "embedded"))


def test_import_is_light() -> None:
    code = "import sys, fedsparq; print([m for m in ('torch', 'flwr', 'matplotlib', 'datasets') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("missing", "words", "extra"),
    [
        ("torch", ["run"], "lab"),
        ("pandas", ["report", "x"], "lab"),
        ("click", [], "cli"),
        ("rich", ["methods"], "cli"),
    ],
)
def test_missing_extra_is_named(missing: str, words: list[str], extra: str, tmp_path: Path) -> None:
    """With a library hidden, the command says what to install."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] == {missing!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "fedsparq", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
        check=False,
    )
    assert done.returncode == 2
    assert f"needs {missing}: pip install 'fedsparq[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "metadata",
    [
        {"fedsparq": "[" * 100_000},
        {"fedsparq": "{}"},
        {"fedsparq-residual": "[1]"},
        {"fedsparq-residual": '["[]"]'},
        {f"k{number}": "\x1b[2J" * 1000 for number in range(1000)},
    ],
)
def test_inspect_of_a_foreign_file_is_short_or_a_sentence(
    metadata: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"a": np.zeros(3, np.float32)}, tmp_path / "file", metadata)
    code = call(monkeypatch, "inspect", str(tmp_path / "file"))
    said = capsys.readouterr()
    assert code == 0 or said.err.startswith("fedsparq: ")
    assert "\x1b" not in said.out + said.err
    assert len(said.out) + len(said.err) < 20_000
