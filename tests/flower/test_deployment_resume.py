"""The ServerApp of a real deployment, killed at random moments: the next run goes on and loses nothing that counted."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedsparq import DiskStore, Layout
from fedsparq.federate.messages import Reply

sys.path.insert(0, str(Path(__file__).parents[2] / "deploy"))
from one_machine import Federation, wait

APP = Path(__file__).with_name("apps") / "resumed"
ROUNDS, NODES, KILLS = 6, 2, 5
LAYOUT = Layout.of({"fc1.weight": (128, 100), "fc1.bias": (128,), "fc2.weight": (10, 128), "fc2.bias": (10,)})


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_server_app_killed_at_five_random_moments_ends_with_the_unbroken_runs_model(tmp_path: Path) -> None:
    """A moment is a round and a part of it. The last round waits for us, so that each kill meets a run under way."""
    with Federation(tmp_path, NODES) as federation:
        for number in range(NODES):
            federation.node(number)
        wait("the SuperNodes", lambda: federation.online() == NODES, 300)
        unbroken, begun = _begin(federation, "unbroken"), time.monotonic()
        federation.finish(unbroken, 900)
        expected, seconds = np.load(tmp_path / "unbroken" / "model.npy"), (time.monotonic() - begun) / ROUNDS

        rng, folder = random.Random(14), tmp_path / "broken"
        for moment in sorted(rng.uniform(0, ROUNDS) for _ in range(KILLS)):
            _begin(federation, "broken")
            wait(f"round {moment:.1f}", lambda least=int(moment): _done(folder) >= least, 600, pause=0.1)
            time.sleep(moment % 1 * seconds)
            os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
        (folder / "go").touch()
        federation.finish(_begin(federation, "broken"), 900)

    np.testing.assert_array_equal(np.load(folder / "model.npy"), expected)
    for node in range(NODES):
        _nothing_is_lost(folder, _state(tmp_path / f"state-{node}", node), node)


def _begin(federation: Federation, name: str) -> str:
    """Submit a run; returns when its ServerApp is at work."""
    folder = federation.folder / name
    folder.mkdir(exist_ok=True)
    (folder / "pid").unlink(missing_ok=True)
    run = federation.run(APP, f'folder="{folder}" rounds={ROUNDS} hold={str(name == "broken").lower()}')
    wait(f"the ServerApp of {name}", (folder / "pid").exists, 300, pause=0.1)
    return run


def _done(folder: Path) -> int:
    """How many rounds some ServerApp has closed."""
    return int((folder / "done").read_text()) if (folder / "done").exists() else 0


def _state(states: Path, node: int):
    (folder,) = (path for path in states.glob("federation-broken/node-*/*") if path.is_dir())
    return DiskStore(folder).load(node, LAYOUT).state


def _nothing_is_lost(folder: Path, state, node: int) -> None:
    """All deltas that a node ever made = its updates that counted + its residual; its last reply is among those."""
    deltas, counted = (
        [np.load(folder / f"{kind}-{node}-{number}.npy") for number in range(1, ROUNDS + 1)]
        for kind in ("delta", "counted")
    )
    assert Reply.decode(state.in_flight).round == state.round == ROUNDS
    residual = state.compression.residual
    assert np.abs(residual).max() > 1e-4
    np.testing.assert_allclose(sum(counted) + residual, sum(deltas), atol=1e-5)
