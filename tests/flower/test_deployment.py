"""SuperLink and SuperNodes as real processes on 127.0.0.1, brought up by the scripts of `deploy/`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedsparq.engines.desk import Task
from fedsparq.experiments.spec import RunSpec
from fedsparq.federate.messages import Reply
from fedsparq.federate.store import DiskStore
from fedsparq.wire.frame import decode

sys.path.insert(0, str(Path(__file__).parents[2] / "deploy"))
from one_machine import Federation, free_port, wait

APP = Path(__file__).with_name("deployed_app")
LAYOUT = Task(RunSpec(clients=3, partition="dirichlet", train_limit=600)).layout


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with Federation(tmp_path) as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_federation_survives_the_death_of_a_node_and_loses_nothing(federation: Federation) -> None:
    folder = federation.folder
    for number in range(3):
        federation.node(number)
    config = f'folder="{folder}" rounds=5'
    run = federation.run(APP, config)

    wait("the reply that will never be sent", (folder / "stalled").exists, 400)
    federation.kill("node-2")
    before = _state(folder, 2)
    assert before.round == 2
    assert before.in_flight

    def back() -> bool:
        if federation.processes.get("node-2") is None or federation.processes["node-2"].poll() is not None:
            federation.node(2)
        return (folder / "counted-2-4.npy").exists()

    time.sleep(60)
    wait("the node that was killed", back, 400)
    status = federation.finish(run, 400)

    report = json.loads((folder / "report.json").read_text())
    assert [r["counted"] for r in report["rounds"]] == [3, 2, 2, 3, 3]
    assert "reply to round 2 was not counted: put back into the residual" in report["rounds"][3]["events"]
    assert report["accuracies"][-1] > report["accuracies"][0] + 20
    _nothing_is_lost(folder)
    _traffic_agrees(report, status["network-traffic"])


@pytest.mark.slow
def test_strangers_are_refused(federation: Federation) -> None:
    """A key that was not registered, and a node that does not know the certificate authority, among others."""
    folder = federation.folder
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", folder / "stranger.key"], check=True
    )
    common = ["flower-supernode", "--superlink", f"127.0.0.1:{federation.port}", "--max-retries", "1"]
    common += ["--host", "127.0.0.1", "--port", str(free_port())]
    unknown = [*common, "--root-certificates", str(folder / "ca.crt")]
    with_key = "--auth-supernode-private-key"
    attempts = {
        "unknown key": ([*unknown, with_key, str(folder / "stranger.key")], "Failed to activate SuperNode"),
        "no key": (unknown, "All SuperNodes must be registered"),
        "no authority": ([*common, with_key, str(folder / "node-0.key")], "CERTIFICATE_VERIFY_FAILED"),
        "no TLS": ([*common, "--insecure"], ""),  # the words depend on who hangs up first
    }
    for name, (command, reason) in attempts.items():
        process = federation.start(name, *command)
        assert process.wait(timeout=120) != 0, name
        assert reason in federation.log(name), federation.log(name)
        assert "SuperNode ID" not in federation.log(name), name
        federation.kill(name)
    nodes = federation.flwr("supernode", "list", "federation")["nodes"]
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
