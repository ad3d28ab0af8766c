"""SuperLink and SuperNodes as real processes on 127.0.0.1, brought up by the scripts of `deploy/`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedsparq import DiskStore, decode
from fedsparq.federate.messages import Reply
from fedsparq.lab.engines.engine import build_task
from fedsparq.lab.specs import RunSpec

sys.path.insert(0, str(Path(__file__).parents[2] / "deploy"))
from one_machine import Federation, RunFailedError, free_port, wait

APP = Path(__file__).with_name("deployed_app")
QUICKSTART, ADVANCED = (Path(__file__).with_name("apps") / name for name in ("quickstart", "advanced"))
LAYOUT = build_task(RunSpec(clients=3, partition="dirichlet", train_limit=600)).layout


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
@pytest.mark.timeout(1500)
def test_an_ordinary_app_trains_with_the_two_lines_and_sends_a_fraction(federation: Federation) -> None:
    measured, traffic = {}, {}
    for number in range(3):
        federation.node(number)
    wait("the SuperNodes", lambda: federation.online() == 3, 120)
    for name, app in {"plain": without_the_two_lines(federation.folder), "compressed": QUICKSTART}.items():
        (federation.folder / name).mkdir()
        run = federation.run(app, f'folder="{federation.folder / name}"')
        traffic[name] = federation.finish(run, 600)["network-traffic"]
        measured[name] = json.loads((federation.folder / name / "result.json").read_text())
        assert (federation.folder / name / "final_model.pt").stat().st_size > 100_000
    for result in measured.values():
        assert set(result["train"]) == set(result["nodes"]) == {"1", "2", "3"}
        assert result["server"]["3"]["accuracy"] > 0.9
        assert result["nodes"]["3"]["eval_acc"] > 0.9
    assert traffic["compressed"]["inbound-bytes"] < traffic["plain"]["inbound-bytes"] / 4


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_run_in_which_every_round_fails_does_not_end_well(federation: Federation) -> None:
    """`split(0)` raises on every node. With the two lines the run fails; without them Flower calls it completed."""
    for number in range(3):
        federation.node(number)
    wait("the SuperNodes", lambda: federation.online() == 3, 120)
    bad = f'folder="{federation.folder}" batch-size=0 num-server-rounds=1 fraction-evaluate=0.0'
    with pytest.raises(RunFailedError, match=r"(?s)the run ended as finished:failed.*split"):
        federation.finish(federation.run(QUICKSTART, bad), 300)
    patched = without_the_two_lines(federation.folder)
    server = patched / "quickstart" / "server_app.py"
    server.write_text(server.read_text().replace("    torch.save(", "    return\n    torch.save("))
    with pytest.raises(RunFailedError, match=r"(?s)no node sent a result in any round.*split"):
        federation.finish(federation.run(patched, bad), 300)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_strategy_with_its_own_loop_writes_its_checkpoints_and_a_killed_node_comes_back(
    federation: Federation,
) -> None:
    folder = federation.folder
    for number in range(3):
        federation.node(number)
    run = federation.run(ADVANCED, f'folder="{folder}" num-server-rounds=4')
    wait("the first round", (folder / "results.json").exists, 400)
    federation.kill("node-2")
    federation.node(2)  # at once, and so too early: the script tries again until the SuperLink takes it
    federation.finish(run, 900)

    results = json.loads((folder / "results.json").read_text())
    assert [r["round"] for r in results] == [1, 2, 3, 4]
    assert [r["lr"] for r in results] == [0.05, 0.05, 0.025, 0.025]
    assert results[0]["nodes"] == results[-1]["nodes"] == 3
    assert "starting it again in 5 s" in federation.log("node-2")
    best = max(results, key=lambda r: r["accuracy"])
    assert best["accuracy"] > 0.9
    assert json.loads((folder / "best.json").read_text()) == best["accuracy"]
    assert (folder / f"best_model_round_{best['round']}.pt").stat().st_size > 100_000


def without_the_two_lines(folder: Path) -> Path:
    """The quickstart app as it was before."""
    app = Path(shutil.copytree(QUICKSTART, folder / "quickstart"))
    plain = 'FedAvg(fraction_evaluate=config["fraction-evaluate"])'
    for name, after, before in (
        ("client_app.py", "mods=[compress()]", ""),
        ("server_app.py", f"Compressed({plain})", plain),
    ):
        text = (app / "quickstart" / name).read_text()
        assert after in text
        lines = text.replace(after, before).splitlines(keepends=True)
        kept = [line for line in lines if "fedsparq.flower" not in line]
        (app / "quickstart" / name).write_text("".join(kept))
    return app


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
    (states,) = (path for path in (folder / f"state-{node}").glob("run-*/node-*/*") if path.is_dir())
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
