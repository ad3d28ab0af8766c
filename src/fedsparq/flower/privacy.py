"""What differential privacy of Flower's asks of a mod that comes after it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Array, RecordDict
from flwr.clientapp.mod import LocalDpMod

from fedsparq.flower.records import to_array, view
from fedsparq.payload import Payload
from fedsparq.protocols import State

_CLIP = "clipping_norm"
"""Where both of Flower's wrappers with clipping on the client say how long an update may be."""

_AIM = 0.999
"""A clipped update aims at this share of the clip: rounding on the way must not lift it above."""


def clip_of(content: RecordDict) -> float:
    """How long what leaves the node may be; infinity where nobody clips on the client."""
    for record in content.config_records.values():
        value = record.get(_CLIP)
        if isinstance(value, int | float) and value > 0:
            return float(value)
    return math.inf


def is_noisy(call_next: Any) -> bool:
    """Whether a mod between us and the app adds noise of its own: what follows it is post-processing."""
    waiting, seen = [call_next], set()
    while waiting:
        function = waiting.pop()
        if isinstance(function, LocalDpMod):
            return True
        if id(function) in seen:
            continue
        seen.add(id(function))
        cells = getattr(function, "__closure__", None) or ()
        waiting += [cell.cell_contents for cell in cells if callable(_content(cell))]
    return False


def clip(
    limit: float, payload: Payload, state: State, before: Mapping[str, Array], after: Mapping[str, Array]
) -> tuple[Payload, State, dict[str, Array], bool]:
    """An update that is no longer than `limit`, parameters and float buffers together, as the server decodes it.

    What is cut off the parameters stays in the residual, if the method has one. `before` and `after` are the arrays
    that travel exactly; of those that are floats, each moves by the same share as the parameters.
    """
    if limit == math.inf:
        return payload, state, dict(after), False
    moved = {name: delta for name in after if (delta := _moved(before.get(name), after[name])) is not None}
    buffers = math.sqrt(sum(float(np.square(delta).sum()) for delta in moved.values()))
    length = math.hypot(payload.norm, buffers)
    if length <= _AIM * limit:
        return payload, state, dict(after), False
    share, part = _AIM * limit / length, payload
    while True:
        part = payload.scaled(np.float32(share))
        if math.hypot(part.norm, share * buffers) <= _AIM * limit * (1 + 1e-4):
            break
        share *= _AIM
    arrays = dict(after)
    for name, delta in moved.items():
        whole = view(before[name]).astype(np.float64) + share * delta
        arrays[name] = to_array(np.asarray(whole.astype(after[name].dtype)))
    if state.residual is not None:
        residual = state.residual.copy()
        payload.add_to(residual, 1.0)
        part.add_to(residual, -1.0)
        state = replace(state, feedback=state.feedback | {"residual": residual})
    return part, state, arrays, True


def _moved(before: Array | None, after: Array) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    if before is None or before.shape != after.shape or view(after).dtype.kind != "f":
        return None
    return view(after).astype(np.float64) - view(before).astype(np.float64)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None
