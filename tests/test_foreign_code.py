"""Files that somebody else wrote name code; no command imports or calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import xxhash
from safetensors.numpy import load_file, save_file

from fedsparq.errors import OptionError
from fedsparq.lab.folder import run_name
from fedsparq.lab.specs import load_compare
from fedsparq.large import compress, restore
from made_runs import make_run

UPDATE = {"w": np.linspace(-1, 1, 3000, dtype=np.float32)}
CODE = ("method", "aggregator", "optimizer", "downlink", "task", "dataset", "model")
"""The keys of a spec that may name code."""
TINY = 'methods = ["fedavg"]\nrounds = 1\nclients = 2\ntrain_limit = 40\ntest_limit = 20\n'


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A working folder with a module that leaves a mark as soon as it is imported."""
    (tmp_path / "foreign.py").write_text("import pathlib\npathlib.Path('mark').touch()\ndef code(**options): pass\n")
    return tmp_path


def fedsparq(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedsparq", *words]
    return subprocess.run(command, cwd=here, capture_output=True, text=True, check=False, timeout=300)


def sent_folder(folder: Path, spec: str, finished: bool = True) -> None:
    """A run folder as somebody sends it."""
    made = make_run(folder.parent / "making", "fedsparq", rounds=6)
    made.joinpath("spec.toml").write_text(spec)
    if not finished:
        made.joinpath("summary.json").unlink()
    made.rename(folder)


def foreign_spec(*keys: str) -> str:
    return "".join(f'{key} = "foreign:code"\n' for key in keys)


def forged(message: bytes, name: str, options: dict[str, object]) -> bytes:
    """A message whose header names another method; its checksum is right."""
    end = 9 + int.from_bytes(message[5:9], "little")
    about = json.loads(message[9:end]) | {"method": [name, "1", options]}
    header = json.dumps(about, separators=(",", ":")).encode()
    body = message[:5] + len(header).to_bytes(4, "little") + header + message[end:-8]
    return body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")


def forged_message(here: Path, name: str, options: dict[str, object]) -> bytes:
    compress(UPDATE, here / "residual", here / "message", method="fedsparq")
    bad = forged((here / "message").read_bytes(), name, options)
    (here / "message").write_bytes(bad)
    return bad


@pytest.mark.parametrize("name", ["subprocess:getoutput", "foreign:code"])
def test_a_message_names_no_code_to_restore(here: Path, name: str) -> None:
    bad = forged_message(here, name, {"cmd": "touch mark"} if "sub" in name else {})
    residual = (here / "residual").read_bytes()
    done = fedsparq(here, "restore", "message", "--residual", "residual")
    assert not (here / "mark").exists()
    assert done.returncode == 2
    assert (here / "message").read_bytes() == bad
    assert (here / "residual").read_bytes() == residual


def test_a_message_names_no_code_to_apply_and_inspect(here: Path) -> None:
    forged_message(here, "subprocess:getoutput", {"cmd": "touch mark"})
    save_file(UPDATE, here / "model")
    assert fedsparq(here, "apply", "model", "message", "--out", "new").returncode == 0
    assert (here / "new").exists()
    assert fedsparq(here, "inspect", "message").returncode == 0
    assert not (here / "mark").exists()


def test_a_residual_names_code_only_if_its_user_names_it_too(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "mine.py").write_text("import fedsparq\ndef plain(): return fedsparq.method('fedsparq')\n")
    save_file(UPDATE, here / "update")
    words = ["compress", "update", "--residual", "residual", "--out", "message", "--method", "mine:plain"]
    assert fedsparq(here, *words).returncode == 0
    before = (here / "residual").read_bytes()
    for more in ([], ["--method", "fedsparq"]):
        assert fedsparq(here, "restore", "message", "--residual", "residual", *more).returncode == 2
        assert (here / "message").exists()
        assert (here / "residual").read_bytes() == before
    monkeypatch.chdir(here)
    with pytest.raises(OptionError):
        restore("message", "residual")
    given = fedsparq(here, "restore", "message", "--residual", "residual", "--method", "mine:plain")
    assert given.returncode == 0, given.stderr
    np.testing.assert_allclose(load_file(here / "residual")["w"], UPDATE["w"], rtol=1e-6, atol=1e-9)


def test_a_report_on_finished_runs_imports_nothing(here: Path) -> None:
    for key in CODE:
        sent_folder(here / f"sent-{key}", foreign_spec(key))
    done = fedsparq(here, "report", ".", "--out", "report.html")
    assert done.returncode == 0, done.stderr
    assert not (here / "mark").exists()


def test_watching_runs_imports_nothing_and_shows_them(here: Path) -> None:
    for number, key in enumerate(CODE):
        sent_folder(here / f"sent-{key}", f"{foreign_spec(key)}rounds = 9\nseed = {number}\n", finished=False)
    command = [sys.executable, "-m", "fedsparq", "report", ".", "--watch", "--out", "live.html"]
    watching = subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        page, deadline, first = here / "live.html", time.monotonic() + 120, 0
        while watching.poll() is None and time.monotonic() < deadline:
            now = page.stat().st_mtime_ns if page.exists() else 0
            if first and now != first:
                break  # what the first version shows has been told before the second is written
            first = first or now
            time.sleep(0.05)
    finally:
        watching.send_signal(signal.SIGINT)
        told, _ = watching.communicate(timeout=120)
    assert not (here / "mark").exists()
    assert f"{6 * len(CODE)} of {9 * len(CODE)} rounds" in told
    assert "foreign:code" in (here / "live.html").read_text()


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_into_a_sent_folder_imports_nothing_that_it_names(here: Path, finished: bool) -> None:
    sent_folder(here / "sent", foreign_spec(*CODE), finished)
    before = sorted((here / "sent").iterdir())
    done = fedsparq(here, "run", "--out", "sent", "--resume", "--rounds", "1")
    assert not (here / "mark").exists()
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert sorted((here / "sent").iterdir()) == before


def test_a_comparison_among_sent_folders_imports_nothing_that_they_name(here: Path) -> None:
    (here / "tiny.toml").write_text(TINY)
    (spec,) = load_compare(here / "tiny.toml", {}).runs()
    for name in {spec.folder_name, run_name(spec)}:
        sent_folder(here / "out" / name, foreign_spec(*CODE))
    done = fedsparq(here, "compare", "tiny.toml", "--out", "out")
    assert not (here / "mark").exists()
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_run_that_names_its_user_s_code_goes_on_and_is_found_finished(here: Path) -> None:
    (here / "mine.py").write_text("import fedsparq\ndef plain(): return fedsparq.method('fedavg')\n")
    words = ["run", "--method", "mine:plain", "--clients", "2", "--train-limit", "40", "--test-limit", "20"]
    rounds = here / "out" / "rounds.jsonl"
    for number, last in (("1", 1), ("2", 2), ("2", 2)):
        done = fedsparq(here, *words, "--out", "out", "--rounds", number)
        assert done.returncode == 0, done.stderr
        assert len(rounds.read_text().splitlines()) == last
    os.remove(here / "mine.py")
    assert fedsparq(here, "report", "out", "--out", "report.html").returncode == 0
