"""One experiment, four ways to carry its bytes: the payloads and the models are the same, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsparq.engines.desk import Task
from fedsparq.engines.flower_simulation import FlowerSimulation, client_app
from fedsparq.engines.local import LocalEngine
from fedsparq.experiments.run import run
from fedsparq.experiments.spec import RunSpec
from fedsparq.federate.messages import Reply
from fedsparq.federate.model import Model
from fedsparq.flower import FedSparQ, compress
from fedsparq.flower.carrier import GridEngine
from fedsparq.flower.records import to_arrays, to_model, unwrap
from inprocess_grid import InProcessGrid

SPEC = RunSpec(clients=3, rounds=5, train_limit=600, test_limit=200, partition="dirichlet")


@dataclass
class Recorded:
    """An engine that writes down every reply it carries."""

    inner: object
    payloads: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def __enter__(self):
        self.inner.__enter__()
        return self

    def __exit__(self, *error):
        self.inner.__exit__(*error)

    def exchange(self, number, requests, saved, dying=frozenset()):
        for delivery in self.inner.exchange(number, requests, saved, dying):
            reply = Reply.decode(delivery.answer.message)
            self.payloads[reply.round, delivery.client] = reply.blob
            yield delivery


def play(spec: RunSpec, folder: Path, make) -> tuple[dict[tuple[int, int], bytes], dict[str, np.ndarray], dict]:
    carried = {}

    def carrier(task, states):
        carried["engine"] = Recorded(make(task, states))
        return carried["engine"]

    summary = run(spec, folder, carrier=carrier)
    return carried["engine"].payloads, load_file(folder / "model.safetensors"), summary


def in_process(task: Task, states: Path) -> GridEngine:
    grid = InProcessGrid([client_app(task.spec.model_dump_json(), str(states))] * task.spec.clients)
    return GridEngine(grid, dict(enumerate(grid.get_node_ids())), strict=True)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return play(SPEC, tmp_path_factory.mktemp("local") / "run", LocalEngine)


def same(one, other) -> None:
    assert len(one[0]) == 15
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    assert all((one[1][name] == other[1][name]).all() for name in one[1])


def test_the_in_process_grid_gives_what_the_local_engine_gives(local, tmp_path):
    other = play(SPEC, tmp_path / "run", in_process)
    same(local, other)
    for key in ("accuracy", "loss", "upload_bytes", "download_bytes", "kept"):
        assert local[2][key] == other[2][key]


def test_flowers_simulation_gives_what_the_local_engine_gives(local, tmp_path):
    same(local, play(SPEC, tmp_path / "run", lambda task, states: FlowerSimulation(task, states, workers=2)))


@pytest.mark.slow
def test_a_spec_can_name_the_simulation(tmp_path):
    """Here with a compressed downlink and dropped replies, in processes of Ray's that share nothing but files."""
    spec = SPEC.model_dump() | {"rounds": 2, "downlink": "fedsparq-adaptive", "faults": {"drop": 0.4}, "seed": 3}
    plain = run(RunSpec(**spec), tmp_path / "local")
    simulated = run(RunSpec(**spec | {"engine": "flower-simulation"}), tmp_path / "flower", workers=2)
    assert (tmp_path / "local" / "model.safetensors").read_bytes() == (
        tmp_path / "flower" / "model.safetensors"
    ).read_bytes()
    assert plain["upload_bytes"] == simulated["upload_bytes"]


def test_the_mod_and_the_strategy_give_what_the_local_engine_gives(local, tmp_path):
    """A Flower app of a user's own, with `compress` and `FedSparQ` as its only traces of us."""
    task, payloads = Task(SPEC), {}

    def fate(message: Message) -> Message:
        reply = Reply.decode(unwrap(message.content["arrays"]))
        payloads[reply.round, message.metadata.src_node_id - 100] = reply.blob
        return message

    start = task.take()
    grid = InProcessGrid([_users_app(task, tmp_path)] * 3, fate=fate)
    result = FedSparQ().start(grid, to_arrays(start, task.layout), num_rounds=5)
    assert payloads == local[0]
    final = to_model(result.arrays, task.layout)
    for tensor in task.layout.parameters:
        got = final.vector[tensor.span].reshape(tensor.shape)
        assert np.abs(got - local[1][tensor.name]).max() < 1e-6
        assert (got == local[1][tensor.name]).all()


def _users_app(task: Task, states: Path) -> ClientApp:
    app = ClientApp()

    @app.train(mods=[compress("fedsparq", state=states)])
    def train(message: Message, context: Context) -> Message:
        before = to_model(message.content["arrays"], task.layout)
        number = int(message.content["config"]["server-round"])
        trained = task.train(int(context.node_config["partition-id"]), before, SPEC.chosen_method(), number)
        after = Model(task.take().vector, trained.exact)
        arrays = {name: Array(array.numpy()) for name, array in to_arrays(after, task.layout).items()}
        metrics = MetricRecord({"num-examples": trained.examples})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    return app
