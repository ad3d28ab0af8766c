"""SuperLink and SuperNodes as real processes on 127.0.0.1, brought up by the scripts of `deploy/`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedsparq.engines.desk import Task
from fedsparq.experiments.spec import RunSpec
from fedsparq.federate.messages import Reply
from fedsparq.federate.store import DiskStore
from fedsparq.wire.frame import decode

ROOT = Path(__file__).parents[2]
APP = Path(__file__).with_name("deployed_app")
LAYOUT = Task(RunSpec(clients=3, partition="dirichlet", train_limit=600)).layout


class Federation:
    """Processes of one federation. Each is the leader of its own group, so that it dies with all it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.runtime_port = _free_port(), _free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PORT": str(self.port),
            "SUPERLINK": f"127.0.0.1:{self.port}",
            "RUNTIME_PORT": str(self.runtime_port),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }

    def call(self, *command: str, **environment: str) -> str:
        done = subprocess.run(
            command, env=self.environment | environment, capture_output=True, text=True, timeout=120, cwd=ROOT
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=self.environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
        self.processes[name] = process
        return process

    def node(self, number: int) -> subprocess.Popen[bytes]:
        return self.start(f"node-{number}", "deploy/supernode.sh", str(self.folder), str(number))

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def flwr(self, *command: str) -> str:
        return self.call("flwr", *command, FLWR_HOME=str(self.folder / "flwr"))

    def status(self, run: str) -> dict:
        return json.loads(self.flwr("ls", "federation", "--run-id", run, "--format", "json"))["runs"][0]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path)
    try:
        made.call("deploy/keys.sh", str(tmp_path), "3")
        made.start("superlink", "deploy/superlink.sh", str(tmp_path))
        _wait("the SuperLink", lambda: _listens(made.port), 60)
        made.call("deploy/connect.sh", str(tmp_path))
        yield made
    finally:
        for name in list(made.processes):
            made.kill(name)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_federation_survives_the_death_of_a_node_and_loses_nothing(federation: Federation) -> None:
    folder = federation.folder
    _refuses_strangers(federation)
    for number in range(3):
        federation.node(number)
    config = f'folder="{folder}" rounds=5'
    started = json.loads(federation.flwr("run", str(APP), "federation", "--run-config", config, "--format", "json"))
    run = str(started["run-id"])

    _wait("the reply that will never be sent", (folder / "stalled").exists, 400)
    federation.kill("node-2")
    before = _state(folder, 2)
    assert before.round == 2
    assert before.in_flight

    def back() -> bool:
        if federation.processes.get("node-2") is None or federation.processes["node-2"].poll() is not None:
            federation.node(2)
        return (folder / "counted-2-4.npy").exists()

    time.sleep(60)
    _wait("the node that was killed", back, 400)
    _wait("the end of the run", lambda: federation.status(run)["status"].startswith("finished"), 400)
    status = federation.status(run)
    assert status["status"] == "finished:completed", federation.log("superlink")[-3000:]

    report = json.loads((folder / "report.json").read_text())
    assert [r["counted"] for r in report["rounds"]] == [3, 2, 2, 3, 3]
    assert "reply to round 2 was not counted: put back into the residual" in report["rounds"][3]["events"]
    assert report["accuracies"][-1] > report["accuracies"][0] + 20
    _nothing_is_lost(folder)
    _traffic_agrees(report, status["network-traffic"])


def _refuses_strangers(federation: Federation) -> None:
    """A key that was not registered, and a node that does not know the certificate authority."""
    folder = federation.folder
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", folder / "stranger.key"], check=True
    )
    common = ["flower-supernode", "--superlink", f"127.0.0.1:{federation.port}", "--max-retries", "1"]
    common += ["--host", "127.0.0.1", "--port", str(_free_port())]
    unknown = [*common, "--root-certificates", str(folder / "ca.crt")]
    attempts = {
        "unknown key": [*unknown, "--auth-supernode-private-key", str(folder / "stranger.key")],
        "no key": unknown,
        "no authority": [*common, "--auth-supernode-private-key", str(folder / "node-0.key")],
        "no TLS": [*common, "--insecure"],
    }
    for name, command in attempts.items():
        process = federation.start(name, *command)
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert process.wait(timeout=60) != 0, federation.log(name)
        assert "SuperNode ID" not in federation.log(name), name
        federation.kill(name) if process.poll() is None else federation.processes.pop(name)
    nodes = json.loads(federation.flwr("supernode", "list", "federation", "--format", "json"))["nodes"]
    assert {node["status"] for node in nodes} == {"registered"}


def _state(folder: Path, node: int):
    (states,) = (folder / f"state-{node}").glob("run-*/node-*")
    return DiskStore(states).load(node, LAYOUT).state


def _nothing_is_lost(folder: Path) -> None:
    """For each node: all deltas it ever made = updates that counted + what is in flight + residual."""
    for node in range(3):
        deltas = sum(np.load(path).astype(np.float64) for path in folder.glob(f"delta-{node}-*.npy"))
        counted = sum(np.load(path) for path in folder.glob(f"counted-{node}-*.npy"))
        state = _state(folder, node)
        assert state.round == 5
        assert Reply.decode(state.in_flight).round == 5
        assert (folder / f"counted-{node}-5.npy").exists()
        residual = state.compression.residual
        left = deltas - counted - residual
        assert np.abs(left).max() < 1e-5, (node, np.abs(left).max(), np.abs(deltas).max())
        assert np.abs(residual).max() > 1e-3
    lost = decode(Reply.decode(_state(folder, 2).in_flight).blob, LAYOUT)
    assert lost.kept > 0
    assert not (folder / "counted-2-2.npy").exists()
    assert (folder / "delta-2-2.npy").exists()


def _traffic_agrees(report: dict, traffic: dict) -> None:
    """What Flower's SuperLink counted is what we counted and Flower's own protocol."""
    messages = sum(r["counted"] for r in report["rounds"]) + 1
    up, down = (sum(r[key] for r in report["rounds"]) for key in ("up", "down"))
    assert up < traffic["inbound-bytes"] < up + 8000 * messages
    assert down < traffic["outbound-bytes"] < down + 12000 * messages


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait(what: str, until: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(1)
