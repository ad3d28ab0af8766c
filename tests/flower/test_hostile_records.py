"""One node of six answers with a record that no honest node makes: the run goes on with the others, and says who it
was."""

import signal
from collections.abc import Callable
from contextlib import contextmanager
from io import BytesIO

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from toy import client_app, model, values

from fedsparq.flower import FedSparQ, compress
from fedsparq.payload.frame import pack_frame
from inprocess_grid import InProcessGrid

NODES, HOSTILE = 6, 105
HONEST = {100, 101, 102, 103, 104}
ROUNDS = 2
Change = Callable[[RecordDict], dict[str, object]]


def npy(value: np.ndarray) -> bytes:
    stream = BytesIO()
    np.save(stream, value)
    return stream.getvalue()


def header(text: str, body: bytes = b"", version: bytes = b"\1\0") -> bytes:
    """An array's bytes with a header that numpy would not write."""
    size = 2 if version == b"\1\0" else 4
    return b"\x93NUMPY" + version + len(text).to_bytes(size, "little") + text.encode() + body


def with_data(make: Callable[[Array], bytes]) -> Change:
    """One array's bytes exchanged; what it says of its type and shape stays."""

    def change(content: RecordDict) -> dict[str, object]:
        arrays = dict(content["arrays"])
        own = arrays["fc.weight"]
        arrays["fc.weight"] = Array(own.dtype, own.shape, own.stype, make(own))
        return {"arrays": ArrayRecord(arrays)}

    return change


def with_array(name: str, *about: object) -> Change:
    return lambda content: {"arrays": ArrayRecord({**content["arrays"], name: Array(*about)})}


def without(name: str) -> Change:
    return lambda content: {"arrays": ArrayRecord({n: a for n, a in content["arrays"].items() if n != name})}


def metrics(**more: object) -> Change:
    return lambda content: {"metrics": MetricRecord({**content["metrics"], **more})}


def emptied(content: RecordDict) -> dict[str, object]:
    """All arrays are there, and none has any bytes."""
    arrays = {n: Array(a.dtype, a.shape, a.stype, b"") for n, a in content["arrays"].items()}
    return {"arrays": ArrayRecord(arrays)}


WEIGHT = np.zeros((5, 40), np.float32)
SHAPE = "'fortran_order': False, 'shape': (5, 40), }\n"
PLAIN: dict[str, Change] = {
    "garbage": with_data(lambda own: b"garbage" * 30),
    "no bytes": emptied,
    "another magic": with_data(lambda own: b"\x93NUMPZ" + own.data[6:]),
    "another version": with_data(lambda own: own.data[:6] + b"\x09\0" + own.data[8:]),
    "wrong inner shape": with_data(lambda own: npy(np.zeros((4, 3), np.float32))),
    "as many values in another shape": with_data(lambda own: npy(np.zeros((40, 5), np.float32))),
    "wrong inner type": with_data(lambda own: npy(np.zeros((5, 40), np.complex128))),
    "texts": with_data(lambda own: npy(np.full((5, 40), "x"))),
    "objects": with_data(lambda own: header("{'descr': '|O', " + SHAPE, bytes(8 * WEIGHT.size))),
    "a structured type": with_data(lambda own: header("{'descr': [('a', '<f4')], " + SHAPE, WEIGHT.tobytes())),
    "cut": with_data(lambda own: own.data[:-1]),
    "too long": with_data(lambda own: own.data + b"\0"),
    "a header without an end": with_data(lambda own: own.data[:8] + b"\xff\xff" + own.data[10:]),
    "a header nested too deep": with_data(lambda own: header("[" * 9000)),
    "an endless shape": with_data(lambda own: header("{'descr': '<f4', " + SHAPE.replace("40", str(2**62)))),
    "no values in an endless shape": with_data(
        lambda own: header("{'descr': '|V0', " + SHAPE.replace("40", str(2**62)))
    ),
    "a foreign kind": lambda content: {
        "arrays": ArrayRecord({n: Array(a.dtype, a.shape, "x/y", a.data) for n, a in content["arrays"].items()})
    },
    "not a number": with_data(lambda own: npy(np.full((5, 40), np.nan, np.float32))),
    "infinite": with_data(lambda own: npy(np.full((5, 40), -np.inf, np.float32))),
    "an array is missing": without("fc.bias"),
    "an exact array is missing": without("mask"),
    "one array too many": with_array("more", np.zeros(3, np.float32)),
    "an exact array of garbage": with_array("mask", "bool", (3,), "numpy.ndarray", b"garbage"),
    "statistics of another shape": with_array("bn.running_mean", np.zeros(40, np.float32)),
    "a counter of another type": with_array("bn.num_batches_tracked", np.array("x")),
    "no arrays": lambda content: {"arrays": MetricRecord({"num-examples": 1})},
    "arrays twice": lambda content: {"again": ArrayRecord(dict(content["arrays"]))},
    "examples are a list": metrics(**{"num-examples": [1.0, 2.0]}),
    "examples are not a number": metrics(**{"num-examples": float("nan")}),
    "examples below zero": metrics(**{"num-examples": -5}),
    "endless examples": metrics(**{"num-examples": float("inf")}),
    "far too many examples": metrics(**{"num-examples": 1e300}),
}
ONLY_METRICS: dict[str, Change] = {
    "another metric": metrics(more=2.0),
    "a list for a number": metrics(loss=[1.0, 2.0]),
    "metrics twice": lambda content: {"more": MetricRecord({"loss": 1.0})},
    "no metrics": lambda content: {"metrics": ConfigRecord({"num-examples": "x"})},
    "metrics of nothing": lambda content: {"metrics": MetricRecord({})},
}
"""The update is sound; what was measured cannot be averaged with that of others."""


def changed_bytes(content: RecordDict, name: str, data: Callable[[bytes], bytes]) -> dict[str, object]:
    (key,) = [name for name in content["arrays"] if name.endswith(name)][:1]
    own = content["arrays"][key]
    made = data(own.data)
    return {"arrays": ArrayRecord({**content["arrays"], key: Array("uint8", (len(made),), own.stype, made)})}


def beside(data: bytes) -> Change:
    """More arrays of ours beside the update."""

    def change(content: RecordDict) -> dict[str, object]:
        (first, *_) = content["arrays"].values()
        more = Array("uint8", (len(data),), first.stype, data)
        return {"arrays": ArrayRecord({**content["arrays"], "fedsparq-beside": more})}

    return change


PACKED: dict[str, Change] = {
    "no update": lambda content: changed_bytes(content, "fedsparq", lambda data: b""),
    "half an update": lambda content: changed_bytes(content, "fedsparq", lambda data: data[: len(data) // 2]),
    "garbage": lambda content: changed_bytes(content, "fedsparq", lambda data: b"garbage" * 9),
    "a flipped bit": lambda content: changed_bytes(content, "fedsparq", lambda data: data[:-9] + b"!" + data[-8:]),
    "garbage beside": beside(b"garbage"),
    "examples are a list": metrics(**{"num-examples": [1.0]}),
    "far too many examples": metrics(**{"num-examples": 1e300}),
}
NOTED: dict[str, Change] = {
    "remarks are a text": lambda content: {"fedsparq": ConfigRecord({"remarks": "text", "evaluates": [1]})},
    "remarks are bytes": lambda content: {"fedsparq": ConfigRecord({"remarks": [b"\xff"], "version": "x"})},
    "remarks are metrics": lambda content: {"fedsparq": MetricRecord({"remarks": 1})},
}
"""The update is sound; what stands beside it is not read."""


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

    rounds = play(change, packed=True, downlink="fedsparq")
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
