"""Records that no honest node makes, by what is wrong with them: a node's reply is changed on its way."""

from collections.abc import Callable
from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

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
