"""Secure sums on six real nodes, of which one dies in each stage: the model is that of a run without masks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedsparq.federate.rounds import Delivery
from fedsparq.lab.engines.engine import Asked
from fedsparq.lab.engines.local import LocalEngine
from fedsparq.lab.experiments.run import run
from fedsparq.lab.specs import RunSpec, check

sys.path.insert(0, str(Path(__file__).parents[2] / "deploy"))
sys.path.insert(0, str(Path(__file__).with_name("secure_app")))
from one_machine import Federation, wait

from secure import DEATHS, PLAIN

APP = Path(__file__).with_name("secure_app")
PATIENCE = 1500


class Losing(LocalEngine):
    """Who died in stage 1 or 2 has never seen the model; who died in stage 3 has trained, and was not heard."""

    def exchange(self, asked: Asked) -> Iterator[Delivery]:
        dead = asked.round if asked.round in DEATHS else -1
        heard = {client: data for client, data in asked.broadcasts.items() if client != dead or dead >= 3}
        for delivery in super().exchange(replace(asked, broadcasts=heard)):
            if delivery.client != dead or dead >= 4:
                yield delivery


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE)
def test_one_node_dies_in_each_stage_and_the_model_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    with Federation(tmp_path, nodes=6) as federation:
        for number in range(6):
            federation.node(number)
        job = federation.run(APP, f'folder="{tmp_path}"')
        for number in DEATHS:  # the round, the stage and the node
            wait(f"stage {number} of round {number}", (tmp_path / f"stalled-{number}").exists, PATIENCE)
            federation.kill(f"node-{number}")
            wait("the others' answers", (tmp_path / f"over-{number}-{number}").exists, PATIENCE)
            federation.node(number)
        federation.finish(job, PATIENCE)

    records = [json.loads(line) for line in (tmp_path / "masked" / "rounds.jsonl").read_text().splitlines()]
    assert [record["clients"] for record in records] == [5, 5, 5, 6, 6, 6]
    run(check(RunSpec, PLAIN), tmp_path / "plain", engine=lambda *made: Losing(*made))
    plain, masked = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "masked"))
    assert plain == masked
    keys = {number: (tmp_path / f"state-{number}" / "keys" / "node.pub").read_text() for number in range(6)}
    for number in range(6):
        known = json.loads((tmp_path / f"state-{number}" / "keys" / "known.json").read_text())
        assert known == {str(other): key for other, key in keys.items() if other != number}
