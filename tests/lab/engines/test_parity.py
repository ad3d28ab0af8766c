"""One experiment, four ways to carry its bytes: the payloads and the models are the same, bit for bit."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedsparq
from fedsparq import Model
from fedsparq.federate.messages import Reply
from fedsparq.flower import FedSparQ, compress
from fedsparq.flower.records import unwrap
from fedsparq.lab.engines.engine import build_task
from fedsparq.lab.engines.flower import FlowerSimulation, GridEngine, client_app
from fedsparq.lab.engines.local import LocalEngine
from fedsparq.lab.experiments.run import run
from fedsparq.lab.specs import RunSpec
from fedsparq.lab.tasks.supervised import Supervised
from fedsparq.methods import registry
from flower_models import to_arrays, to_model
from inprocess_grid import InProcessGrid

SPEC = RunSpec(clients=3, rounds=5, train_limit=600, test_limit=200, partition="dirichlet")

USERS_FILE = """
import fedsparq as fq

@fq.register("users-tenth")
def tenth(share: float = 0.1):
    return fq.Method(fq.method("top-10", fraction=share).compressor, feedback="full")
"""


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

    def exchange(self, asked):
        for delivery in self.inner.exchange(asked):
            reply = Reply.decode(delivery.answer.message)
            self.payloads[reply.round, delivery.client] = reply.blob
            yield delivery


def play(spec: RunSpec, folder: Path, make) -> tuple[dict[tuple[int, int], bytes], dict[str, np.ndarray], dict]:
    recorded = []

    def engine(spec, task, states):
        recorded.append(Recorded(make(spec, task, states)))
        return recorded[0]

    summary = run(spec, folder, engine=engine)
    return recorded[0].payloads, load_file(folder / "model.safetensors"), summary


def in_process(spec: RunSpec, task: object, states: Path) -> GridEngine:
    grid = InProcessGrid([client_app(spec, states, str(Path.cwd()))] * spec.clients)
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
    same(local, play(SPEC, tmp_path / "run", partial(FlowerSimulation, workers=2)))


def masked_and_plain(folder, make, clients=4):
    """The models of a run under masks on another engine, and of one without on the local engine; as bytes."""
    said = {"method": "fedsparq-private", "rounds": 2, "clients": clients}
    plain = RunSpec(**SPEC.model_dump() | said)
    run(plain, folder / "plain")
    run(RunSpec(**plain.model_dump() | {"privacy": {"secure_sums": True}}), folder / "masked", engine=make)
    return [(folder / name / "model.safetensors").read_bytes() for name in ("masked", "plain")]


def test_secure_sums_over_a_grid_give_the_model_without_masks(tmp_path):
    masked, plain = masked_and_plain(tmp_path, in_process)
    assert masked == plain


@pytest.mark.slow
def test_secure_sums_in_flowers_simulation_give_the_model_without_masks(tmp_path):
    masked, plain = masked_and_plain(tmp_path, partial(FlowerSimulation, workers=2))
    assert masked == plain


@pytest.fixture
def users_file(tmp_path, monkeypatch):
    """A file of a user's in the working folder; what it registers is forgotten afterwards."""
    (tmp_path / "users_method.py").write_text(USERS_FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "METHODS", dict(registry.METHODS))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "users_method", raising=False)
    fedsparq.method("users_method:tenth")


@pytest.mark.usefixtures("users_file")
@pytest.mark.parametrize("method", ["users_method:tenth", "users-tenth"])
def test_a_users_method_is_found_from_any_working_folder(method, tmp_path, monkeypatch):
    """By `module:function`, from the folder where the run was started; so is what the file registers under a name."""
    spec = RunSpec(**SPEC.model_dump() | {"rounds": 1, "method": method, "options": {"share": 0.2}})
    local = run(spec, tmp_path / "local")

    def elsewhere(spec, task, states):
        engine = in_process(spec, task, states)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        del sys.modules["users_method"], registry.METHODS["users-tenth"]
        return engine

    assert run(spec, tmp_path / "run", engine=elsewhere)["accuracy"] == local["accuracy"]
    assert "users_method" in sys.modules


@pytest.mark.slow
@pytest.mark.usefixtures("users_file")
@pytest.mark.parametrize("method", ["users_method:tenth", "users-tenth"])
def test_a_users_method_reaches_rays_processes(method, tmp_path):
    spec = SPEC.model_dump() | {"rounds": 1, "method": method, "options": {"share": 0.2}}
    run(RunSpec(**spec), tmp_path / "local")
    run(RunSpec(**spec | {"engine": "flower-simulation"}), tmp_path / "flower", workers=2)
    local, simulated = (load_file(tmp_path / name / "model.safetensors") for name in ("local", "flower"))
    assert all((local[name] == simulated[name]).all() for name in local)


@pytest.mark.slow
def test_a_spec_can_name_the_simulation(tmp_path):
    """Here with a compressed downlink and dropped replies, in processes of Ray's that share nothing but files."""
    spec = SPEC.model_dump() | {"rounds": 2, "downlink": "lattice", "faults": {"drop": 0.4}, "seed": 3}
    plain = run(RunSpec(**spec), tmp_path / "local")
    simulated = run(RunSpec(**spec | {"engine": "flower-simulation"}), tmp_path / "flower", workers=2)
    assert (tmp_path / "local" / "model.safetensors").read_bytes() == (
        tmp_path / "flower" / "model.safetensors"
    ).read_bytes()
    assert plain["upload_bytes"] == simulated["upload_bytes"]


def test_the_mod_and_the_strategy_give_what_the_local_engine_gives(local, tmp_path):
    """A Flower app of a user's own, with `compress` and `FedSparQ` as its only traces of us."""
    task, payloads = build_task(SPEC), {}

    def fate(message: Message) -> Message:
        reply = Reply.decode(unwrap(message.content["arrays"]))
        payloads[reply.round, message.metadata.src_node_id - 100] = reply.blob
        return message

    grid = InProcessGrid([_users_app(task, tmp_path)] * 3, fate=fate)
    result = FedSparQ().start(grid, to_arrays(task.initial(), task.layout), num_rounds=5)
    assert payloads == local[0]
    final = to_model(result.arrays, task.layout)
    for tensor in task.layout.parameters:
        got = final.vector[tensor.span].reshape(tensor.shape)
        assert np.abs(got - local[1][tensor.name]).max() < 1e-6
        assert (got == local[1][tensor.name]).all()


def _users_app(task: Supervised, states: Path) -> ClientApp:
    app, method = ClientApp(), SPEC.chosen_method()

    @app.train(mods=[compress("fedsparq", state=states)])
    def train(message: Message, context: Context) -> Message:
        before = to_model(message.content["arrays"], task.layout)
        number = int(message.content["config"]["server-round"])
        hook = method.gradient_hook(method.init(task.layout))
        trained = task.train(int(context.node_config["partition-id"]), before, number, hook)
        after = to_arrays(Model(*task.network.state()), task.layout)
        arrays = {name: Array(array.numpy()) for name, array in after.items()}
        metrics = MetricRecord({"num-examples": trained.examples})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    return app
