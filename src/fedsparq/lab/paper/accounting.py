"""What the paper counts a message as: a formula over what is sent, where everybody else here takes `len(bytes)`."""

from functools import singledispatch

import numpy as np

from fedsparq.payload import Float16Values, Payload, RotatedSigns, Sparse, Values
from fedsparq.payload.levels import Levels


def message_bytes(payload: Payload) -> int:
    """The values, 4 bytes for each index that is listed, and the model's buffers as they are."""
    total = sum(map(values_bytes, payload.values))
    if isinstance(payload.selection, Sparse):
        total += 4 * payload.kept
    if payload.buffers is not None:
        total += payload.buffers.statistics.nbytes + payload.buffers.counters.nbytes
    return total


@singledispatch
def values_bytes(values: Values) -> int:
    """The values of one layer: 4 bytes each, as float32; other kinds register their own count.

    A kind from outside the package does so with `values_bytes.register`.
    """
    return 4 * len(values)


@values_bytes.register
def _(values: Float16Values) -> int:
    return 2 * len(values)


@values_bytes.register
def _(values: Levels) -> int:
    top = int(np.abs(values.levels).max(initial=1))
    bits = 1 + (top - 1).bit_length()
    return (len(values) * bits + 7) // 8


@values_bytes.register
def _(values: RotatedSigns) -> int:
    return values.scales.nbytes + values.negative.nbytes
