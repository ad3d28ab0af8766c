"""The local engine's processes: they die with their parent, and a dead one is a clear error."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsparq.errors import RunError
from fedsparq.federate.server import Server
from fedsparq.lab.engines.engine import Asked, build_task
from fedsparq.lab.engines.local import LocalEngine
from fedsparq.lab.specs import RunSpec

SPEC = RunSpec(train_limit=300, test_limit=100, rounds=1)


def test_a_dead_worker_is_a_clear_error(tmp_path: Path) -> None:
    task = build_task(SPEC)
    server = Server(task.layout, SPEC.chosen_method(), task.initial())
    server.open_round(range(3))
    requests = {client: server.broadcast(client) for client in range(3)}
    with LocalEngine(SPEC, task, tmp_path, workers=2) as engine:
        assert len(list(engine.exchange(Asked(1, requests, 0)))) == 3
        for pid in engine._pool.pids:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(RunError, match="--resume"):
            list(engine.exchange(Asked(1, requests, 0)))


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    words = ["run", "--rounds", "500", "--clients", "4", "--workers", "2", "--out", str(tmp_path / "run")]
    parent = subprocess.Popen([sys.executable, "-m", "fedsparq", *words], stdout=subprocess.DEVNULL)
    try:
        rounds, deadline = tmp_path / "run" / "rounds.jsonl", time.monotonic() + 120
        while not (rounds.exists() and rounds.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.1)
        workers = _children(parent.pid)
        assert len(workers) >= 2
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 30
    while any(map(_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(_alive, workers))


def _children(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
