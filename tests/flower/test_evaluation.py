"""Evaluation's messages are small too: they carry the round's change, and the next round only names the model."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedsparq.flower import Compressed, FedSparQ, compress
from inprocess_grid import InProcessGrid

SHAPES = {"fc1.weight": (128, 784), "fc1.bias": (128,), "fc2.weight": (10, 128), "fc2.bias": (10,)}


def start(extra: int = 0) -> ArrayRecord:
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in SHAPES.items()}
    if extra:
        arrays["table"] = rng.integers(0, 255, extra).astype(np.uint8)
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})


def learner(*mods, on_evaluate=(), seen=None) -> ClientApp:
    """Pulls towards a target that all nodes share, with a node's own noise of heavy tails."""
    app, target = ClientApp(), np.random.default_rng(9)
    targets = {name: target.laplace(0, 0.05, shape).astype(np.float32) for name, shape in SHAPES.items()}

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        rng = np.random.default_rng([context.node_id, int(message.content["config"]["server-round"])])
        after = {}
        for name, array in message.content["arrays"].items():
            value = array.numpy()
            if name in targets:
                value = value + 0.3 * (targets[name] - value) + rng.laplace(0, 0.002, value.shape).astype(np.float32)
            after[name] = Array(np.asarray(value.astype(array.dtype)))
        metrics = MetricRecord({"num-examples": 10, "loss": 1.0})
        return Message(RecordDict({"arrays": ArrayRecord(after), "metrics": metrics}), reply_to=message)

    @app.evaluate(mods=list(on_evaluate))
    def evaluate(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"]
        if seen is not None:
            seen.append({name: array.numpy() for name, array in arrays.items()})
        far = sum(float(np.abs(arrays[name].numpy() - value).mean()) for name, value in targets.items())
        return Message(RecordDict({"m": MetricRecord({"num-examples": 10, "far": far})}), reply_to=message)

    return app


class Counting(InProcessGrid):
    """Bytes of every message, both ways, after each round of training and evaluation."""

    def total(self) -> int:
        return sum(self.up.values()) + sum(self.down.values())


def bytes_of(strategy, app, rounds: int, extra: int = 0):
    grid = Counting([app] * 3)
    result = strategy.start(grid, start(extra), num_rounds=rounds, timeout=1)
    return grid.total(), result


@pytest.mark.parametrize("own", [False, True])
def test_with_evaluation_on_both_directions_take_a_fiftieth(own):
    """Rounds 2 to 15 at least 50 times fewer bytes than plain Flower; 25 times with the first model, which is whole."""
    mods = [compress()]

    def made():
        if own:
            return FedSparQ("fedsparq-adaptive", bits=0.3, downlink="fedsparq-adaptive", fraction_evaluate=1.0)
        return Compressed(FedAvg(), "fedsparq-adaptive", bits=0.3, downlink="fedsparq-adaptive")

    app = learner(*mods, on_evaluate=mods)
    plain, _ = bytes_of(FedAvg(), learner(), 15)
    plain_first, _ = bytes_of(FedAvg(), learner(), 1)
    first, _ = bytes_of(made(), app, 1)
    whole, result = bytes_of(made(), app, 15)
    later, all_rounds = (plain - plain_first) / (whole - first), plain / whole
    print(f"rounds 2 to 15: {later:.1f}x; all rounds: {all_rounds:.1f}x")
    assert later >= 50
    assert all_rounds >= 25
    first_far, last_far = (result.evaluate_metrics_clientapp[number]["far"] for number in (1, 15))
    assert last_far < first_far


def test_evaluation_sees_the_public_model_and_training_the_same_one():
    seen: list = []
    strategy = Compressed(FedAvg(), "fedsparq", downlink="float16")
    trained: list = []

    def spy(message, context, call_next):
        trained.append({name: array.numpy() for name, array in message.content["arrays"].items()})
        return call_next(message, context)

    app = learner(compress(), spy, on_evaluate=[compress()], seen=seen)
    strategy.start(InProcessGrid([app] * 3), start(), num_rounds=4, timeout=1)
    for number in range(3):
        for name, value in seen[3 * number].items():
            np.testing.assert_array_equal(value, trained[3 * (number + 1)][name])
    assert all(r.evaluation_bytes for r in strategy.rounds)


def test_evaluation_without_the_mod_gets_plain_arrays():
    seen: list = []
    strategy = Compressed(FedAvg(), "fedsparq", downlink="float16")
    app = learner(compress(), seen=seen)
    result = strategy.start(InProcessGrid([app] * 3), start(), num_rounds=3, timeout=1)
    for name, value in seen[-1].items():
        np.testing.assert_array_equal(value, result.arrays[name].numpy())


def test_arrays_that_did_not_change_never_come_back():
    grid, size = Counting([learner(compress())] * 3), 1_000_000
    Compressed(FedAvg(fraction_evaluate=0.0)).start(grid, start(size), num_rounds=3, timeout=1)
    assert sum(grid.up.values()) < size


def test_arrays_that_did_not_change_are_not_sent_again():
    """A megabyte of integers that nobody trains travels once to each node with a downlink, and never back."""
    app = learner(compress(), on_evaluate=[compress()])
    size = 1_000_000

    def made():
        return Compressed(FedAvg(), downlink="fedsparq")

    without, _ = bytes_of(made(), app, 5)
    with_it, result = bytes_of(made(), app, 5, extra=size)
    assert with_it - without < (2 * 3 + 0.5) * size  # once for training, once for evaluation, to each of three nodes
    np.testing.assert_array_equal(result.arrays["table"].numpy(), start(size)["table"].numpy())
