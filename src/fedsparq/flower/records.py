"""Flower's records and ours: frames in and out of messages, and arrays in a model's own types."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsparq.errors import WireError
from fedsparq.federate.exact import ArraySpec
from fedsparq.federate.serialized import Record, Serialized, to_array, view

EXAMPLES = "num-examples"
"""Flower's name for the number of examples an app trained on."""
_MOST_EXAMPLES = 2**53
"""Whole numbers up to here are exact as floats."""
KEY = "fedsparq"
STYPE = "fedsparq/1"
"""How an array says that its data is ours."""
_RECORD = "config"
_HEX = "\0hex"
"""The name of bytes in JSON; no key of a record begins so."""
_CLIP = "clipping_norm"
"""Where both of Flower's wrappers with clipping on the client say how long an update may be."""


def wrap(data: bytes) -> ArrayRecord:
    """Bytes as a record of one array."""
    return ArrayRecord({KEY: Array("uint8", (len(data),), STYPE, data)})


def unwrap(record: ArrayRecord) -> bytes | None:
    """What `wrap` wrapped; None for a record of plain arrays."""
    array = record.get(KEY)
    return array.data if array is not None and array.stype == STYPE else None


def to_record(arrays: Record) -> ArrayRecord:
    return ArrayRecord(
        {
            name: array if isinstance(array, Array) else Array(array.dtype, tuple(array.shape), array.stype, array.data)
            for name, array in arrays.items()
        }
    )


def size(record: Record) -> int:
    """The bytes of a record's arrays."""
    return sum(len(array.data) for array in record.values())


def only_arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """The one record of arrays in a message, and its key."""
    records = content.array_records
    if len(records) != 1:
        raise WireError(f"a message for training must hold one ArrayRecord, the model; this one holds {len(records)}")
    return next(iter(records.items()))


def examples(content: RecordDict) -> float:
    """Return the weight that the app says its reply has, as Flower reads it; 1 where it says none."""
    for record in content.metric_records.values():
        value = record.get(EXAMPLES, 1)
        if not (isinstance(value, int | float) and 0 <= value <= _MOST_EXAMPLES):
            raise WireError(f"{EXAMPLES} is {str(value)[:80]}; it must be a number from 0 to 2^53")
        if EXAMPLES in record:
            return value
    return 1


def alike(contents: Mapping[int, RecordDict]) -> dict[int, RecordDict]:
    """The contents whose metrics have a mean: those whose names and lengths are as most nodes say them."""
    kinds = {node: _kinds(content) for node, content in contents.items()}
    usual = Counter(kinds.values()).most_common(1)
    return {node: content for node, content in contents.items() if kinds[node] == usual[0][0]}


def _kinds(content: RecordDict) -> tuple[object, ...]:
    """The names of metrics, and how many numbers each of them has."""

    return tuple(
        (name, tuple(sorted((key, len(each) if isinstance(each, list) else -1) for key, each in record.items())))
        for name, record in content.metric_records.items()
    )


def clip_of(content: RecordDict) -> float:
    """How long what leaves the node may be; infinity where nobody clips on the client."""
    for record in content.config_records.values():
        value = record.get(_CLIP)
        if isinstance(value, int | float) and value > 0:
            return float(value)
    return math.inf


def with_frame(content: RecordDict, frame: bytes, *, plain: bool, spec: ArraySpec | None = None) -> RecordDict:
    """The content of a message to one node; what it shares with other nodes is left alone.

    The frame takes the place of the model's arrays where it carries the model. Else it lies in the config, beside the
    `plain` arrays or beside the names of the model's arrays (`spec`), without data: an app without the mod fails on
    them, and its error names our serialization type.
    """
    key = next(iter(content.array_records))
    if not plain and spec is None:
        return RecordDict({**content, key: wrap(frame)})
    name, record = next(iter(content.config_records.items()), (_RECORD, ConfigRecord()))
    framed = RecordDict({**content, name: ConfigRecord({**record, KEY: frame})})
    if spec is not None:
        framed[key] = ArrayRecord({name: Array(dtype, shape, STYPE, b"") for name, dtype, shape in spec.entries})
    return framed


def without_frame(content: RecordDict) -> tuple[RecordDict, bytes | None]:
    """The content as the app expects it, and the frame, if there is one."""
    for record in content.array_records.values():
        frame = unwrap(record)
        if frame is not None:
            return content, frame
    for name, config in content.config_records.items():
        found = config.get(KEY)
        if isinstance(found, bytes):
            return RecordDict({**content, name: ConfigRecord({k: v for k, v in config.items() if k != KEY})}), found
    return content, None


def cast(arrays: Record, spec: ArraySpec) -> ArrayRecord:
    """The same arrays in the types of a spec: integers are rounded, never cut. Arrays it does not know stay."""
    wanted = {name: dtype for name, dtype, _ in spec.entries}
    return to_record({name: _cast(array, wanted.get(name, array.dtype)) for name, array in arrays.items()})


def _cast(array: Serialized, dtype: str) -> Serialized:
    if array.dtype == dtype:
        return array
    values, wanted = view(array), np.dtype(dtype)
    if wanted.kind == "b":
        values = np.rint(values)
    elif wanted.kind in "iu":
        limits = np.iinfo(wanted)
        rounded = np.rint(values)
        low, high = rounded <= limits.min, rounded >= float(limits.max)
        whole = np.where(low | high, 0, rounded).astype(wanted)
        return to_array(np.where(low, limits.min, np.where(high, limits.max, whole)).astype(wanted))
    return to_array(np.asarray(values.astype(wanted)))


def extra_of(key: str, content: RecordDict) -> bytes:
    """What a reply holds beside its update, to be sent again with it."""
    kinds = content.metric_records, content.config_records
    plain = [{name: dict(record) for name, record in records.items()} for records in kinds]
    return json.dumps([key, *plain], default=lambda value: {_HEX: value.hex()}).encode()


def of_extra(data: bytes) -> tuple[str, RecordDict]:
    """Undo `extra_of`; WireError for what it does not write, as a state's file may hold."""
    hook = lambda value: bytes.fromhex(value[_HEX]) if _HEX in value else value  # noqa: E731
    try:
        key, metrics, configs = json.loads(data, object_hook=hook)
        records: dict[str, Any] = {name: MetricRecord(values) for name, values in metrics.items()}
        records |= {name: ConfigRecord(values) for name, values in configs.items()}
        return str(key), RecordDict(records)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise WireError(f"what was said beside a reply cannot be read: {str(error)[:200]}") from None
