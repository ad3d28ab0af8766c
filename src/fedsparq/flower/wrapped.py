"""Bytes of ours in a record of Flower's: one array, which Flower carries untouched."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord

STYPE = "fedsparq/1"
"""How an array says that its data is ours."""

_NAME = "fedsparq"


def wrap(data: bytes) -> ArrayRecord:
    """Bytes as a record of one array."""
    return ArrayRecord({_NAME: Array("uint8", (len(data),), STYPE, data)})


def unwrap(record: ArrayRecord) -> bytes | None:
    """What `wrap` wrapped; None for a record of plain arrays."""
    array = record.get(_NAME)
    return array.data if array is not None and array.stype == STYPE else None
