"""One of three real SuperNodes, with TLS and its own key, sends 20 kinds of rubbish over 20 rounds."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from toy import model, values

sys.path.insert(0, str(Path(__file__).parents[2] / "deploy"))
from one_machine import Federation, wait

APP = Path(__file__).with_name("hostile_app")
ROUNDS = 20


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_run_ends_with_a_model_and_the_log_names_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    with Federation(tmp_path) as federation:
        for number in range(3):
            federation.node(number)
        wait("the SuperNodes", lambda: federation.online() == 3, 300)
        run = federation.run(APP, f'folder="{tmp_path}"')
        federation.finish(run, 1000)
        log = federation.run_log(run)

    hostile = int((tmp_path / "hostile").read_text())
    rounds = json.loads((tmp_path / "report.json").read_text())
    assert len(rounds) == ROUNDS
    for each in rounds:
        assert len(each["counted"]) == 2
        assert hostile not in each["counted"]
        assert {client for client, _ in each["events"]} == {hostile}
    assert len(re.findall(rf"fedsparq: .*node {hostile}\b", log)) == ROUNDS
    assert "\x1b[2J" not in log
    assert len(log) < 100_000
    with np.load(tmp_path / "model.npz") as made:
        for name in ("fc.weight", "fc.bias"):
            start, *goals = (values(model(seed))[name] for seed in (0, 100, 101))
            goal = sum(goals) / 2
            assert np.abs(made[name] - goal).mean() < np.abs(start - goal).mean() / 2
