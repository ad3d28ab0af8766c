"""What a user of `fedsparq.flower` sees, on public names alone: models, bytes and who counted, as recorded before.

``python tests/flower/test_flower_net.py`` records it. Models are compared by a projection of each array; bytes may only
fall from what was recorded, but for the frames around small arrays.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod  # noqa: E402
from flwr.serverapp.strategy import (  # noqa: E402
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    Result,
)
from toy import client_app, model  # noqa: E402

from fedsparq import FedSparQError  # noqa: E402
from fedsparq.flower import Compressed, FedSparQ, compress  # noqa: E402
from inprocess_grid import InProcessGrid  # noqa: E402

RECORD = Path(__file__).with_name("net.json")
FRAMES = 600
"""Bytes by which a message's frame may differ from what it was."""


class OwnStart(FedAvg):
    """A loop of its own."""

    def start(self, grid, initial_arrays, num_rounds=3, timeout=3600, train_config=None, *rest, **more) -> Result:
        result, arrays = Result(), initial_arrays
        for number in range(1, num_rounds + 1):
            messages = self.configure_train(number, arrays, train_config or ConfigRecord(), grid)
            arrays = self.aggregate_train(number, grid.send_and_receive(messages, timeout=timeout))[0] or arrays
        result.arrays = arrays
        return result


class Personal(FedAvg):
    """Each node has a model of its own; the result is the first node's."""

    def configure_train(self, server_round, arrays, config, grid):
        self.own = getattr(self, "own", None) or {node: model(node) for node in grid.get_node_ids()}
        for node, own in self.own.items():
            yield Message(RecordDict({"arrays": own, "config": ConfigRecord()}), node, MessageType.TRAIN)

    def aggregate_train(self, server_round, replies):
        for reply in replies:
            self.own[reply.metadata.src_node_id] = reply.content["arrays"]
        return next(iter(self.own.values())), None


def quiet(kind=FedAvg, **options):
    return kind(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1, **options)


def server_fixed():
    return DifferentialPrivacyServerSideFixedClipping(quiet(), 0.0, 0.4, 3)


def server_adaptive():
    return DifferentialPrivacyServerSideAdaptiveClipping(quiet(), 0.0, 3, 0.4, clipped_count_stddev=0.0)


def client_fixed():
    return DifferentialPrivacyClientSideFixedClipping(quiet(), 0.0, 0.4, 3)


def client_adaptive():
    return DifferentialPrivacyClientSideAdaptiveClipping(quiet(), 0.0, 3, 0.4, clipped_count_stddev=0.0)


Plan = tuple[Any, dict[str, Any]]
SCENES: dict[str, Plan] = {
    "fedavg": (lambda: Compressed(quiet()), {}),
    "fedavg-downlink": (lambda: Compressed(quiet(), "fedsparq-adaptive", bits=2, downlink="lattice"), {}),
    "fedavg-evaluate": (
        lambda: Compressed(FedAvg(fraction_evaluate=1.0), downlink="lattice"),
        {"evaluates": True},
    ),
    "fedadam": (lambda: Compressed(quiet(FedAdam)), {}),
    "dp-server-fixed": (lambda: Compressed(server_fixed()), {"counters": False}),
    "dp-server-adaptive": (lambda: Compressed(server_adaptive()), {"counters": False}),
    "dp-client-fixed": (lambda: Compressed(client_fixed()), {"counters": False, "mods": [fixedclipping_mod]}),
    "dp-client-adaptive": (lambda: Compressed(client_adaptive()), {"counters": False, "mods": [adaptiveclipping_mod]}),
    "own-start": (lambda: Compressed(OwnStart(fraction_evaluate=0.0)), {}),
    "personal": (lambda: Compressed(Personal(), "fedsparq"), {}),
    "lost-reply": (lambda: Compressed(quiet()), {"lost": {1, 5, 9}}),
    "own": (lambda: FedSparQ(), {}),
    "own-adaptive-downlink": (lambda: FedSparQ("fedsparq-adaptive", bits=2, downlink="lattice"), {"lost": {4}}),
    "own-robust": (lambda: FedSparQ(aggregator="robust"), {"nodes": 6}),
}


def app_of(mods, evaluates: bool) -> ClientApp:
    app = client_app(compress(), *mods)
    if evaluates:

        @app.evaluate(mods=[compress()])
        def evaluate(message: Message, context: Context) -> Message:
            total = float(sum(np.abs(array.numpy()).sum() for array in message.content["arrays"].values()))
            metrics = MetricRecord({"num-examples": 1, "total": total})
            return Message(RecordDict({"m": metrics}), reply_to=message)

    return app


def play(make, rounds=4, mods=(), lost=frozenset(), counters=True, nodes=3, evaluates=False, grid=None):
    random.seed(0)
    np.random.seed(0)
    place = iter(range(10_000))
    grid = grid or InProcessGrid([app_of(mods, evaluates)] * nodes)
    grid.fate = lambda reply: (
        None if reply.has_content() and "metrics" in reply.content and next(place) in lost else reply
    )
    strategy = make()
    result = strategy.start(grid, model(counters=counters), num_rounds=rounds, timeout=0.05)
    return result.arrays, strategy.rounds, grid


def seen(arrays: ArrayRecord, rounds, grid) -> dict[str, Any]:
    projected = {}
    for name, array in arrays.items():
        value = array.numpy().astype(np.float64).reshape(-1)
        projected[name] = float(value @ np.random.default_rng(7).normal(size=value.size))
    return {
        "model": projected,
        "up": [report.up_bytes for report in rounds],
        "down": [report.down_bytes for report in rounds],
        "carried": sum(grid.up.values()) + sum(grid.down.values()),
        "messages": len(grid.replies),
        "counted": [list(report.counted) for report in rounds],
        "replies": [report.replies for report in rounds],
        "events": [sorted([event.client, event.round] for event in report.events) for report in rounds],
    }


def scene(name: str) -> dict[str, Any]:
    make, options = SCENES[name]
    return seen(*play(make, **options))


def resumed(folder: Path) -> dict[str, Any]:
    """Two rounds, then a new strategy and two more, on the same nodes."""

    def make():
        return Compressed(quiet(FedAdam), checkpoint=folder, federation="net")

    grid = InProcessGrid([app_of((), False)] * 3)
    _, first, _ = play(make, 2, grid=grid)
    arrays, second, _ = play(make, 4, grid=grid)
    return seen(arrays, [*first, *second], grid)


@pytest.mark.parametrize("name", [*SCENES, "resume"])
def test_as_recorded(name: str, tmp_path):
    expected = json.loads(RECORD.read_text())[name]
    got = resumed(tmp_path) if name == "resume" else scene(name)
    assert got["model"] == pytest.approx(expected["model"], rel=1e-5, abs=1e-5)
    for key in ("counted", "replies", "events"):
        assert got[key] == expected[key], key
    frames = FRAMES * max(1, len(got["counted"][0]))
    for key in ("up", "down"):
        for number, (now, before) in enumerate(zip(got[key], expected[key], strict=True)):
            assert now <= before + frames, (key, number)
    assert got["carried"] <= expected["carried"] + FRAMES * got["messages"]


# Faults of the code as it was when the rest was recorded.


def test_fedcomgate_works_or_is_refused(tmp_path):
    """Its promise is that clients' drifts move: by the app's `lr-times-steps`, or not at all and said so."""

    def reaching(message: Message, context: Context, call_next) -> Message:
        reply = call_next(message, context)
        reply.content["metrics"]["lr-times-steps"] = 0.5
        return reply

    try:
        strategy = FedSparQ("fedcomgate", runs=["drift-correction"])
        app = client_app(compress(state=tmp_path, runs=["drift-correction"]), reaching)
        strategy.start(InProcessGrid([app] * 3), model(counters=False), num_rounds=3, timeout=0.05)
    except FedSparQError:
        return
    from safetensors.numpy import load_file

    files = list(tmp_path.rglob("client-*/*.safetensors"))
    assert files
    assert all(np.abs(load_file(path)["rule0.drift"]).max() > 0 for path in files)


def test_a_state_that_does_not_fit_its_method_is_left_aside(tmp_path):
    """A residual that is not finite, with a checksum that is right, went into the next update."""
    from fedsparq.archive import pack, unpack

    class Spoiling(InProcessGrid):
        def push_messages(self, messages):
            listed = list(messages)
            if listed and listed[0].content["config"]["server-round"] == 2:
                (path,) = tmp_path.glob("**/node-101/*/client-*/1.safetensors")
                about, arrays = unpack(path.read_bytes())
                arrays["feedback.residual"][:] = np.nan
                path.write_bytes(pack(about, arrays))
            return super().push_messages(listed)

    strategy = Compressed(quiet())
    grid = Spoiling([client_app(compress(state=tmp_path))] * 3)
    strategy.start(grid, model(), num_rounds=3, timeout=0.05)
    assert [len(report.counted) for report in strategy.rounds] == [3, 3, 3]
    assert any(event.client == 101 for event in strategy.rounds[1].events)


def test_a_stream_of_a_large_file_is_no_request_of_a_secure_sum(tmp_path):
    from click.testing import CliRunner
    from safetensors.numpy import save_file

    from fedsparq.cli.app import app as command
    from fedsparq.federate.masked import is_masked

    save_file({"w": np.random.default_rng(0).normal(size=4096).astype(np.float32)}, tmp_path / "update.safetensors")
    words = ["compress", "update.safetensors", "--residual", "residual.safetensors", "--out", "stream"]
    done = CliRunner().invoke(
        command, [word if "." not in word and word != "stream" else str(tmp_path / word) for word in words]
    )
    assert done.exit_code == 0, done.output
    assert not is_masked((tmp_path / "stream").read_bytes())


class Accountant:
    """Flower's protocol, without the package that its own accountant needs: it counts releases."""

    def __init__(self) -> None:
        from flwr.supercore import privacy_accounting as accounting

        self.config = accounting.PrivacyConfig(
            1e-5, 3, accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, accounting.SamplingMethod.NO_AMPLIFICATION
        )
        self.num_releases = 0

    def compose(self, event, count=1) -> None:
        self.num_releases += count

    def get_privacy_spent(self, delta=None):
        from flwr.supercore.privacy_accounting import PrivacySpent

        return PrivacySpent(float(self.num_releases), 1e-5, self.num_releases, "count")

    def state_dict(self):
        return {"releases": self.num_releases}

    def load_state_dict(self, state) -> None:
        self.num_releases = state["releases"]


def test_a_resumed_run_with_an_accountant_remembers_what_was_spent_or_is_refused(tmp_path):
    pytest.importorskip("flwr.supercore.privacy_accounting")
    spent = []
    for rounds in (2, 3):
        inner = quiet(weighted_by_key="loss")  # the toy's losses are all 1: an accountant wants one weight
        wrapper = DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 0.4, 3, accountant=Accountant())
        try:
            strategy = Compressed(wrapper, checkpoint=tmp_path / "server", federation="net")
        except FedSparQError:
            return
        grid = InProcessGrid([client_app(compress(state=tmp_path / "nodes"))] * 3)
        strategy.start(grid, model(counters=False), num_rounds=rounds, timeout=0.05)
        spent.append(wrapper.privacy_spent().num_releases)
    assert spent == [2, 3]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        recorded = {name: scene(name) for name in SCENES} | {"resume": resumed(Path(place))}
    RECORD.write_text(json.dumps(recorded, indent=1) + "\n")
