"""A kill at any moment: the old residual and no message, or both new ones; never one without the other."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fedsparq.errors import RunError
from fedsparq.large import Message, compress, residual, restore, send

SHAPES = {f"layer{i}": (100, 300) for i in range(4)}
PIECES = {"group": 30_000, "cut": 30_000}


class Killed(BaseException):
    """What a kill is for the process: nothing after it happens."""


def made(seed: int, shapes: dict[str, tuple[int, ...]] = SHAPES) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.laplace(size=shape).astype(np.float32) for name, shape in shapes.items()}


def total(message: Path, left: Path) -> np.ndarray:
    found = {name: array.copy() for name, array in load_file(left).items()}
    if message.exists():
        Message(message).add_to(found)
    return np.concatenate([found[name].reshape(-1) for name in sorted(found)])


STEPS = (
    (send, "encode", 0),
    (residual.NewResidual, "begin", 0),
    (residual.NewResidual, "add", 2),
    (send.MessageWriter, "close", 0),
    (residual.NewResidual, "commit", 0),
    (os, "replace", 0),
    (os, "replace", 1),
    (send, "sync_folder", 0),
)
"""Where the process ends: in which call of which function."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(len(STEPS)), ids=lambda i: STEPS[i][1])
def test_whatever_a_kill_cuts_off(step: int, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends before or after a step, with no clean-up. The same command then either makes the message, or
    says that it was made; and update + residual are in message + residual, once."""
    left, message = tmp_path / "r", tmp_path / "m"
    compress(made(0), left, tmp_path / "first", **PIECES)
    before = total(tmp_path / "none", left)
    owed = before + np.concatenate([array.reshape(-1) for _, array in sorted(made(1).items())])
    home, name, which = STEPS[step]
    real, calls = getattr(home, name), []

    def cut(*arguments, **keywords):
        if len(calls) == which:
            if after:
                real(*arguments, **keywords)
            raise Killed
        calls.append(1)
        return real(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(home, name, cut)
        patch.setattr(residual.NewResidual, "discard", lambda self: self._file.close())
        patch.setattr(Path, "unlink", lambda *a, **k: None)
        with pytest.raises(Killed):
            compress(made(1), left, message, threads=1, **PIECES)
    committed = not np.array_equal(total(tmp_path / "none", left), before)
    if committed:
        with pytest.raises(RunError, match="fedsparq restore"):
            compress(made(1), left, message, **PIECES)
    else:
        assert not message.exists()
        compress(made(1), left, message, **PIECES)
    np.testing.assert_allclose(total(message, left), owed, rtol=1e-6, atol=1e-6)
    assert restore(message, left) == 2
    np.testing.assert_allclose(total(message, left), owed, rtol=1e-6, atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".r.lock", "first", "r"]


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_kill_while_a_message_is_put_back(cut: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, message = tmp_path / "r", tmp_path / "m"
    compress(made(0), left, message, **PIECES)
    real = os.replace

    def killed(*arguments):
        if cut == "after":
            real(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(residual.os, "replace", killed)
        patch.setattr(residual.NewResidual, "discard", lambda self: self._file.close())
        with pytest.raises(Killed):
            restore(message, left)
    assert restore(message, left) == 1
    owed = np.concatenate([array.reshape(-1) for _, array in sorted(made(0).items())])
    np.testing.assert_allclose(total(message, left), owed, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_sigkill_at_ten_moments_loses_nothing(tmp_path: Path) -> None:
    """The command itself, killed by the operating system while it works."""
    shapes = {f"layer{i}": (1000, 2000) for i in range(10)}
    save_file(made(1, shapes), tmp_path / "u.safetensors")
    compress(made(0, shapes), tmp_path / "start", tmp_path / "first")
    owed = total(tmp_path / "none", tmp_path / "start")
    owed += np.concatenate([array.reshape(-1) for _, array in sorted(made(1, shapes).items())])
    left, message = tmp_path / "r", tmp_path / "m"
    words = [sys.executable, "-m", "fedsparq", "compress", "u.safetensors", "--residual", "r", "-o", "m"]
    begun = time.perf_counter()
    shutil.copy(tmp_path / "start", left)
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    whole, killed = time.perf_counter() - begun, 0
    for moment in np.linspace(0.3, 1.0, 10):
        for path in (message, left):
            path.unlink(missing_ok=True)
        shutil.copy(tmp_path / "start", left)
        process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(moment * whole)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
        again = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert again.returncode == 0 or "fedsparq restore" in again.stderr
        np.testing.assert_allclose(total(message, left), owed, rtol=1e-5, atol=1e-5)
        assert not list(tmp_path.glob(".m.*"))
    assert killed
