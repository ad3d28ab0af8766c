"""The two lines of the README run what the README's table was measured with."""

import random
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from safetensors.numpy import load_file

from fedsparq import Model
from fedsparq.flower import FedSparQ, compress
from fedsparq.lab.engines.engine import build_task
from fedsparq.lab.experiments.run import run
from fedsparq.lab.specs import RunSpec
from inprocess_grid import InProcessGrid

ROOT = Path(__file__).parents[2]


def quickstart(method: str, **options: str) -> RunSpec:
    """A run of `make run`, with fewer images and rounds."""
    spec = tomllib.loads((ROOT / "specs" / "quickstart.toml").read_text())
    assert method in spec.pop("methods")
    (partition,) = spec.pop("partitions")
    del spec["name"]
    small = {"rounds": 3, "train_limit": 600, "test_limit": 100, "first_model": "8-bit"}
    return RunSpec(**spec | small | {"partition": partition, "method": method, "options": options})


class InOrder(InProcessGrid):
    """Asks node after node, as the local engine does: sums of floats depend on the order."""

    def push_messages(self, messages):
        return super().push_messages(sorted(messages, key=lambda message: message.metadata.dst_node_id))


@pytest.mark.parametrize(
    "options", [{}, {"drift": "left-out"}, {"stale": "let-go"}], ids=["as written", "drift left out", "stale let go"]
)
def test_the_two_lines_give_the_model_of_the_local_run_bit_for_bit(tmp_path, options):
    (written,) = re.findall(r'^strategy = FedSparQ\("(.+)"\)', (ROOT / "README.md").read_text(), re.MULTILINE)
    spec = quickstart(written, **options)
    task = build_task(spec)
    app = ClientApp()

    @app.train(mods=[compress()])
    def train(message: Message, context: Context) -> Message:
        number, node = int(message.content["config"]["server-round"]), int(context.node_config["partition-id"])
        named = {name: array.numpy() for name, array in message.content["arrays"].items()}
        start = Model(*task.layout.flatten(named))
        trained = task.train(node, start, number, None)
        metrics = MetricRecord({"num-examples": trained.examples})
        arrays = record(Model(*task.network.state()), task.layout)
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    random.seed(0)
    strategy = FedSparQ(written, **options)
    grid = InOrder([app] * spec.clients)
    got = strategy.start(grid, record(task.initial(), task.layout), num_rounds=spec.rounds, timeout=1).arrays
    run(spec, tmp_path)
    expected = load_file(tmp_path / "model.safetensors")
    assert set(got) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(got[name].numpy(), values, err_msg=name)


def record(model: Model, layout) -> ArrayRecord:
    named = layout.unflatten(model.vector, model.buffers)
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in named.items()})
