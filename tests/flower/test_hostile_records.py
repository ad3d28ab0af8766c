"""One node of six answers with a record that no honest node makes: the run goes on with the others, and says who it
was."""

import signal
from contextlib import contextmanager

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from rubbish import NOTED, ONLY_METRICS, PACKED, PLAIN, Change, metrics
from toy import client_app, model, values

from fedsparq.flower import FedSparQ, compress
from fedsparq.payload.frame import pack_frame
from inprocess_grid import InProcessGrid

NODES, HOSTILE = 6, 105
HONEST = {100, 101, 102, 103, 104}
ROUNDS = 2


class LateError(BaseException):
    """What no `except Exception` swallows."""


@contextmanager
def seconds(limit: int):
    """A hang fails the test."""

    def late(*_: object) -> None:
        raise LateError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(limit)
    try:
        yield
    except LateError:
        raise TimeoutError(f"longer than {limit} s") from None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def play(change: Change, packed: bool, **more: object):
    """A run with one hostile node, whose replies are changed on their way."""

    def fate(reply: Message) -> Message:
        if reply.metadata.src_node_id == HOSTILE and reply.has_content():
            reply.content = RecordDict({**reply.content, **change(reply.content)})
        return reply

    apps = [client_app(compress())] * (NODES - 1) + [client_app(*([compress()] if packed else []))]
    strategy = FedSparQ(aggregator="robust", **more)
    with seconds(20):
        result = strategy.start(InProcessGrid(apps, fate=fate), model(), num_rounds=ROUNDS, timeout=1)
    assert all(np.isfinite(array).all() for array in values(result.arrays).values())
    assert result.train_metrics_clientapp[ROUNDS]["loss"] == pytest.approx(1.0)
    assert len(strategy.rounds) == ROUNDS
    for each in strategy.rounds:
        assert set(each.counted) >= HONEST
    return strategy.rounds


def named(rounds) -> bool:
    return all(any(event.client == HOSTILE for event in each.events) for each in rounds)


@pytest.mark.parametrize("shape", PLAIN)
def test_plain_arrays_that_no_app_sends(shape):
    rounds = play(PLAIN[shape], packed=False)
    assert named(rounds)
    assert not any(HOSTILE in each.counted for each in rounds)


@pytest.mark.parametrize("shape", PACKED)
def test_compressed_arrays_that_no_mod_sends(shape):
    rounds = play(PACKED[shape], packed=True)
    assert named(rounds)
    assert not any(HOSTILE in each.counted for each in rounds)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", ONLY_METRICS)
def test_metrics_that_cannot_be_averaged(shape, packed):
    assert named(play(ONLY_METRICS[shape], packed))


@pytest.mark.parametrize("shape", NOTED)
def test_remarks_that_are_none(shape):
    play(NOTED[shape], packed=True)


def test_a_node_that_asks_for_the_whole_model_for_ever():
    """What it says is sound; it only never stops."""
    asked = []

    def change(content: RecordDict) -> dict[str, object]:
        (own, *_) = content["arrays"].values()
        asked.append(1)
        data = pack_frame("W", len(asked).to_bytes(4, "little"))
        return {"arrays": ArrayRecord({"fedsparq": Array("uint8", (len(data),), own.stype, data)})}

    rounds = play(change, packed=True, downlink="lattice")
    assert named(rounds)
    assert len(asked) <= 2 * ROUNDS


EVALUATED: dict[str, Change] = {
    "another metric": metrics(more=2.0),
    "a list for a number": metrics(total=[1.0]),
    "examples are a list": metrics(**{"num-examples": [1.0]}),
    "examples below zero": metrics(**{"num-examples": -5}),
    "far too many examples": metrics(**{"num-examples": 1e300}),
    "metrics twice": lambda content: {"more": MetricRecord({"total": 1.0})},
    "no metrics": lambda content: {"m": ConfigRecord({"num-examples": "x"})},
    "arrays": lambda content: {"arrays": ArrayRecord({"fedsparq": Array("uint8", (1,), "fedsparq/1", b"x")})},
}


def evaluating() -> ClientApp:
    app = client_app(compress())

    @app.evaluate(mods=[compress()])
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"m": MetricRecord({"num-examples": 2, "total": 3.0})}), reply_to=message)

    return app


@pytest.mark.parametrize("shape", EVALUATED)
def test_evaluations_that_cannot_be_averaged(shape):
    def fate(reply: Message) -> Message:
        if reply.metadata.src_node_id == HOSTILE and "m" in reply.content:
            content = RecordDict({"metrics": reply.content["m"]})
            changed = EVALUATED[shape](content)
            reply.content = RecordDict({**reply.content, **{k.replace("metrics", "m"): v for k, v in changed.items()}})
        return reply

    strategy = FedSparQ(aggregator="robust", fraction_evaluate=1.0)
    grid = InProcessGrid([evaluating()] * NODES, fate=fate)
    with seconds(20):
        result = strategy.start(grid, model(), num_rounds=ROUNDS, timeout=1)
    for number in range(ROUNDS):
        assert result.evaluate_metrics_clientapp[number + 1]["total"] == pytest.approx(3.0)
    assert all(set(each.counted) >= HONEST for each in strategy.rounds)
