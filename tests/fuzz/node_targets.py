"""What a node says: Flower's records, error texts, metrics and configs; answers to `fedsparq deploy`.

The bytes of a message choose what is said, so that a mutation of one is another answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from sound_messages import replies
from toy import client_app, model

from fedsparq.errors import WireError
from fedsparq.federate.validation import Validation
from fedsparq.flower import FedSparQ, compress
from fedsparq.flower.records import extra_of, of_extra, unwrap, wrap
from fedsparq.lab.engines.engine import Asked
from fedsparq.lab.engines.flower import GridEngine
from inprocess_grid import InProcessGrid

HOSTILE = 102
WORDS = ("fedsparq behind: 5", "fedsparq: set-up ", "fedsparq/1", "x" * 100_000, "\0\ud7ff\n", "[" * 5000, "None")
NUMBERS = (0, 1, -1, 10, 2**31, 2**53, 2**63 - 1, -(2**63), 0.5, -0.0, 1e-300, 1e308, float("inf"), float("nan"))
NAMES = ("num-examples", "loss", "proof", "remarks", "version", "fedsparq", "evaluates", "silent", "seconds", "metrics")
MORE = ("measured", "about", "arrays", "config", "", "x" * 1000)


def seeds() -> tuple[bytes, ...]:
    return tuple(bytes([number]) * 8 for number in range(40))


def always(data: bytes) -> bool:
    return True


def _choice(rng: np.random.Generator, values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def _value(rng: np.random.Generator, data: bytes, numeric: bool) -> Any:
    value = _choice(rng, [NUMBERS, NUMBERS] if numeric else [NUMBERS, WORDS, (data, b"", True)])
    value = _choice(rng, value)
    listed = [value] * int(rng.integers(0, 4)) if rng.random() < 0.4 else value
    return [*listed, *listed] if isinstance(listed, list) and rng.random() < 0.3 else listed


def _array(rng: np.random.Generator, own: Array, data: bytes) -> Array:
    match int(rng.integers(6)):
        case 0:
            return Array(own.dtype, own.shape, own.stype, data)
        case 1:
            return Array(_choice(rng, ["float64", "object", "x" * 999]), own.shape, own.stype, own.data)
        case 2:
            return Array(own.dtype, _choice(rng, [(), (2**40,), (0,), (2**62, 4)]), own.stype, own.data)
        case 3:
            return Array(own.dtype, own.shape, _choice(rng, ["", "x/y", "fedsparq/1"]), own.data)
        case 4:
            at = int(rng.integers(len(own.data) + 1))
            return Array(own.dtype, own.shape, own.stype, own.data[:at] + data + own.data[at + 1 :])
        case _:
            return Array(np.full((3, 3), _choice(rng, NUMBERS), np.float64))


def said(content: RecordDict, data: bytes) -> RecordDict:
    """The content of an answer with some things exchanged."""
    rng, made = np.random.default_rng(list(hashlib.sha256(data).digest())), RecordDict({**content})
    for _ in range(1 + int(rng.integers(3))):
        name = _choice(rng, [*made, *NAMES, *MORE])
        match int(rng.integers(6)):
            case 0:
                made[name] = MetricRecord({_choice(rng, NAMES + MORE): _value(rng, data, True)})
            case 1:
                made[name] = ConfigRecord({_choice(rng, NAMES + MORE): _value(rng, data, False)})
            case 2 if made.array_records.get(name):
                arrays = dict(made.array_records[name])
                key = _choice(rng, sorted(arrays))
                arrays[key] = _array(rng, arrays[key], data)
                made[name] = ArrayRecord(arrays)
            case 3 if name in made:
                del made[name]
            case 4 if name in made.metric_records:
                record = dict(made.metric_records[name])
                made[name] = MetricRecord({**record, _choice(rng, list(record) or ["x"]): _value(rng, data, True)})
            case _ if name in made.config_records:
                record = dict(made.config_records[name])
                made[name] = ConfigRecord({**record, _choice(rng, list(record) or ["x"]): _value(rng, data, False)})
    return made


class _Lying:
    """A node that changes what its app answers, sometimes to an error."""

    def __init__(self, data: bytes) -> None:
        self._data, self._app = data, _app(*([compress()] if data[0] % 2 else []))

    def __call__(self, message: Message, context: Context) -> Message:
        data = self._data
        if data[0] % 5 == 0:
            text = _choice(np.random.default_rng(list(data)), WORDS)
            return Message(Error(data[-1], data.decode("latin-1") + text), reply_to=message)
        reply = self._app(message, context)
        if reply.has_content():
            reply.content = said(reply.content, data)
        return reply


def _app(*mods: Any) -> Any:
    """One that is evaluated as well."""
    app = client_app(*mods)

    @app.evaluate(mods=list(mods))
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"m": MetricRecord({"num-examples": 2, "total": 3.0})}), reply_to=message)

    return app


KINDS: tuple[Callable[[], FedSparQ], ...] = (
    lambda: FedSparQ(aggregator="robust", validation=Validation(norm_limit="3x median")),
    lambda: FedSparQ(downlink="lattice", fraction_evaluate=1.0),
)


def check_answer(data: bytes) -> bool:
    """Two honest nodes and one that says anything: the run ends with a model in which theirs are."""
    strategy = KINDS[data[-1] % len(KINDS)]()
    grid = InProcessGrid([_app(compress()), _app(compress()), _Lying(data)])  # type: ignore[list-item]
    result = strategy.start(grid, model(), num_rounds=1, timeout=1)
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    (report,) = strategy.rounds
    assert {100, 101} <= set(report.counted)
    assert sum(len(event.reason) for event in report.events) < 1 << 16
    return HOSTILE in report.counted


class _Answering:
    """The app of a node of `fedsparq deploy`."""

    def __init__(self, data: bytes | None) -> None:
        self._data = data

    def __call__(self, message: Message, context: Context) -> Message:
        assert unwrap(message.content.array_records["arrays"]) == b"asked"
        about = ConfigRecord({"silent": False, "remarks": ["said"], "seconds": [1.0, 0.5]})
        content = RecordDict({"arrays": wrap(replies()[0]), "about": about})
        return Message(content if self._data is None else said(content, self._data), reply_to=message)


def check_deployed(data: bytes) -> bool:
    grid = InProcessGrid([_Answering(None), _Answering(data)])  # type: ignore[list-item]
    asked = Asked(1, {0: b"asked", 1: b"asked"}, 0)
    first, second = (each.answer for each in GridEngine(grid, {0: 100, 1: 101}, timeout=1).exchange(asked))
    assert first.message == replies()[0]
    assert first.remarks == ("said",)
    assert sum(map(len, second.remarks)) < 1 << 16
    assert sum(map(len, second.metrics)) < 1 << 16
    return second.message is not None


def extras() -> tuple[bytes, ...]:
    """What was said beside a reply, as a node's state keeps it."""
    config = ConfigRecord({"list": [1, 2], "bytes": b"abc", "text": "x", "flag": True})
    return tuple(
        extra_of("arrays", RecordDict({"metrics": MetricRecord({"loss": loss, "num-examples": 3}), "config": config}))
        for loss in (0.5, 1e300)
    )


def check_extra(data: bytes) -> bool:
    try:
        of_extra(data)
    except WireError:
        return False
    return True
