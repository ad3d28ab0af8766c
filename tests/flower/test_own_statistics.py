"""What travels beside the update under `FedSparQ`: limited as the parameters are, and averaged with what counted."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsparq import Validation, whole_round
from fedsparq.errors import OptionError, RunError
from fedsparq.flower import FedSparQ, compress
from inprocess_grid import InProcessGrid

NODES = 5


def start(**more: Array) -> ArrayRecord:
    rng = np.random.default_rng(0)
    arrays = {"fc.weight": Array(rng.normal(size=(20, 30)).astype(np.float32))}
    arrays["bn.running_mean"] = Array(np.ones(8, np.float32))
    arrays["steps"] = Array(np.zeros(3))
    arrays["bn.num_batches_tracked"] = Array(np.array(7, np.int64))
    return ArrayRecord(arrays | more)


def app(change) -> ClientApp:
    """Honest nodes move everything a little; `change(arrays)` makes of that what the last node sends."""
    made = ClientApp()

    @made.train(mods=[compress()])
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        after = {name: array.numpy() for name, array in message.content["arrays"].items()}
        after["fc.weight"] = after["fc.weight"] + np.float32(0.01)
        after["bn.running_mean"] = after["bn.running_mean"] + np.float32(0.1 * (number + 1))
        after["steps"] = after["steps"] + 0.1
        after["bn.num_batches_tracked"] = after["bn.num_batches_tracked"] + 1
        if number == NODES - 1:
            after = change(after)
        arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in after.items()})
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return made


def end(change, **options) -> tuple[dict[str, np.ndarray], FedSparQ]:
    strategy = FedSparQ("fedavg", **options)
    result = strategy.start(InProcessGrid([app(change)] * NODES), start(), num_rounds=1, timeout=1)
    return {name: array.numpy() for name, array in result.arrays.items()}, strategy


def honest_only(arrays: dict[str, np.ndarray], strategy: FedSparQ) -> None:
    assert strategy.rounds[0].counted == (100, 101, 102, 103)
    np.testing.assert_allclose(arrays["bn.running_mean"], np.full(8, 1.25), rtol=1e-6)
    np.testing.assert_array_equal(arrays["steps"], np.full(3, 0.1))
    assert arrays["bn.num_batches_tracked"] == 8


@pytest.mark.parametrize("name", ["bn.running_mean", "steps"])
def test_a_norm_limit_limits_statistics_too(name):
    """The hostile node's parameters are as all others': only what lies beside them gives it away."""
    arrays, strategy = end(lambda a: a | {name: a[name] + 500}, validation=Validation(norm_limit="3x median"))
    honest_only(arrays, strategy)
    assert any("the statistics moved by" in event.reason for event in strategy.rounds[0].events)


def test_statistics_of_a_reply_that_is_refused_are_left_out():
    def hostile(a):
        return a | {"fc.weight": a["fc.weight"] + 9, "steps": a["steps"] + 1, "bn.num_batches_tracked": np.array(1000)}

    honest_only(*end(hostile, validation=Validation(norm_limit="3x median")))


def test_statistics_of_a_reply_that_the_aggregator_leaves_out_are_left_out():
    def without_last(updates, layout):
        kept = updates[:-1]
        return sum(u.payload.dense() for u in kept) / len(kept), {u.client: float(u in kept) for u in updates}

    def hostile(a):
        return a | {"bn.running_mean": a["bn.running_mean"] + 9, "steps": a["steps"] + 9}

    honest_only(*end(hostile, aggregator=whole_round(without_last)))


@pytest.mark.parametrize("bad", [np.ones(1, np.float32), np.ones((8, 2), np.float32), np.full(8, np.nan, np.float32)])
def test_statistics_of_another_shape_or_that_are_no_numbers_are_refused_and_the_rest_goes_on(bad):
    arrays, strategy = end(lambda a: a | {"bn.running_mean": bad})
    honest_only(arrays, strategy)


def test_a_trained_array_that_has_no_mean_is_refused_not_dropped():
    brain = Array("bfloat16", (2,), "numpy.ndarray", Array(np.array([b"ab", b"cd"], "V2")).data)
    other = Array("bfloat16", (2,), "numpy.ndarray", Array(np.array([b"xx", b"cd"], "V2")).data)

    made = ClientApp()

    @made.train(mods=[compress()])
    def train(message: Message, context: Context) -> Message:
        after = ArrayRecord({**message.content["arrays"], "brain": other})
        return Message(RecordDict({"arrays": after, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    with pytest.raises(RunError, match="'brain' is of the type bfloat16, which has no mean; cast it to float32"):
        FedSparQ("fedavg").start(InProcessGrid([made] * 2), start(brain=brain), num_rounds=1, timeout=1)


def test_a_model_that_our_own_strategy_cannot_step_is_refused_before_the_first_round():
    made = app(lambda a: a)
    double = ArrayRecord({"w": Array(np.ones(3)), "n": Array(np.ones(3, np.int64))})
    grid = InProcessGrid([made] * NODES)
    with pytest.raises(OptionError, match="this model has float64, int64: cast them, or use FedAvg"):
        FedSparQ().start(grid, double, num_rounds=1, timeout=1)
    assert not grid.replies
