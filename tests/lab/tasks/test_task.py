"""Tasks: image classification behind the protocol, and a user's own by name."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedsparq.errors import OptionError
from fedsparq.federate.model import Model
from fedsparq.lab.tasks import Training, class_counts, load_task, train_examples
from fedsparq.lab.tasks.supervised import Supervised
from fedsparq.lab.tasks.training import FlatModel, train
from fedsparq.rules import Proximal

SMALL = {"clients": 3, "partition": "dirichlet", "train_limit": 300, "test_limit": 100, "seed": 2}


def test_images_train_as_the_training_loop_does():
    task = Supervised(**SMALL, training=Training(lr=0.05))
    start = task.initial()
    trained = task.train(1, start, 4, None)
    flat = FlatModel(task._build().module)
    data = task.data
    train(flat, data, task.parts[1], Training(lr=0.05), [2, 4, 1, 0])
    assert np.array_equal(trained.update, flat.vector.numpy() - start.vector)
    assert trained.examples == len(task.parts[1]) == task.examples(1)
    assert trained.buffers is None
    hooked = task.train(1, start, 4, lambda g, w, s: Proximal(0.5).gradient(g, w, s, {}))
    assert not np.array_equal(hooked.update, trained.update)
    assert np.array_equal(task.train(1, start, 4, None).update, trained.update)


def test_the_initial_model_stays_the_initial_model():
    task = Supervised(**SMALL)
    start = task.initial()
    task.train(0, Model(start.vector + 1, start.buffers), 1, None)
    assert np.array_equal(task.initial().vector, start.vector)
    assert np.array_equal(Supervised(**SMALL).initial().vector, start.vector)


def test_batch_normalization_travels_in_the_buffers():
    task = Supervised(**SMALL | {"train_limit": 40, "test_limit": 10}, model="resnet18")
    start = task.initial()
    trained = task.train(0, start, 1, None)
    assert start.buffers.counters.tolist() == [0] * 20
    assert trained.buffers.counters.tolist() == [-(-task.examples(0) // 32)] * 20


def test_images_evaluate_to_named_metrics():
    task = Supervised(**SMALL)
    metrics = task.evaluate(task.initial())
    assert list(metrics) == ["accuracy", "loss"]
    assert 0 <= metrics["accuracy"] <= 30
    assert metrics["loss"] == pytest.approx(np.log(10), rel=0.1)


def test_images_know_their_partition():
    task = Supervised(**SMALL)
    classes, counts = class_counts(task)
    assert classes == tuple("0123456789")
    assert counts.sum(1).tolist() == [task.examples(client) for client in range(3)]
    assert train_examples(task, 3) == 300


def test_nothing_is_loaded_before_it_is_needed():
    task = load_task("supervised", dataset="no-such-set", model="none", clients=3)
    with pytest.raises(OptionError, match="no-such-set"):
        task.initial()


def test_the_protocol_does_not_import_torch():
    code = "import sys, fedsparq.lab.tasks; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


MINE = """
import numpy as np
from fedsparq.federate.client import Trained
from fedsparq.federate.model import Model
from fedsparq.layout import Layout

class Quadratic:
    layout, device = Layout.of({"w": (4,)}), "cpu"
    def __init__(self, clients, seed, target):
        self.targets = np.random.default_rng(seed).normal(target, 1, (clients, 4)).astype(np.float32)
    def initial(self):
        return Model(np.zeros(4, np.float32))
    def examples(self, client):
        return client + 1
    def train(self, client, model, round, hook):
        return Trained(self.targets[client] - model.vector, client + 1)
    def evaluate(self, model):
        return {"loss": float(np.square(model.vector - self.targets.mean(0)).sum())}

def quadratic(clients, seed, target=1.0):
    return Quadratic(clients, seed, target)

def everything(**given):
    assert set(given) == {"clients", "seed", "dataset", "depth"}, given
    return Quadratic(given["clients"], given["seed"], 0.0)

def unfinished(clients):
    return object()
"""


@pytest.fixture
def own_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "own_tasks"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_a_users_own_task_takes_what_it_asks_for(own_tasks):
    task = load_task(f"{own_tasks}:quadratic", {"target": 5.0}, clients=3, seed=0, dataset="mnist")
    assert task.evaluate(task.initial())["loss"] > 10
    assert task.train(2, task.initial(), 1, None).update.shape == (4,)
    assert class_counts(task) is None
    assert train_examples(task, 3) == 6
    load_task(f"{own_tasks}:everything", {"depth": 2}, clients=3, seed=0, dataset="mnist")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("texts", {}, "unknown task 'texts': choose from supervised, spafl, or give package.module:function"),
        ("{own}:quadratic", {"depth": 3}, r"depth.*options are: target"),
        ("{own}:unfinished", {}, "without initial, examples, train, evaluate"),
        ("{own}:missing", {}, "no function 'missing'"),
        ("supervised", {"depth": 3}, r"depth"),
    ],
)
def test_what_is_no_task_is_refused(own_tasks, name, options, message):
    with pytest.raises(OptionError, match=message):
        load_task(name.format(own=own_tasks), options, clients=3, seed=0)
