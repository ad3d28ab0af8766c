"""What a reply holds beside its update: kept with it, so that the same reply can be sent again."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, MetricRecord, RecordDict


def attachment(key: str, about: RecordDict, beside: bytes) -> bytes:
    """What a reply holds beside its update, to be sent again with it."""

    def plain(records: Mapping[str, Any]) -> dict[str, Any]:
        return {name: {k: _jsonable(v) for k, v in record.items()} for name, record in records.items()}

    text = json.dumps([key, plain(about.metric_records), plain(about.config_records)]).encode()
    return struct.pack("<I", len(text)) + text + beside


def attached(data: bytes) -> tuple[str, RecordDict, bytes]:
    (length,) = struct.unpack_from("<I", data)
    key, metrics, configs = json.loads(data[4 : 4 + length])
    records: dict[str, Any] = {name: MetricRecord(values) for name, values in metrics.items()}
    for name, values in configs.items():
        records[name] = ConfigRecord({k: _of_json(v) for k, v in values.items()})
    return key, RecordDict(records), data[4 + length :]


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, list):
        return [_jsonable(each) for each in value]
    return value


def _of_json(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return [_of_json(each) for each in value] if isinstance(value, list) else value
