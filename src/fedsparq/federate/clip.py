"""Make an update shorter before it leaves a client: under the server's norm limit, or for privacy.

A client whose replies were lost for some rounds has much to make up for. Under a norm limit its next update could be
refused as too long, put back, and be longer still in the next round: it would never count again.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.federate.serialized import NUMPY, Record, Serialized, to_array, view
from fedsparq.method import Method
from fedsparq.payload import Payload
from fedsparq.protocols import State

_SAFE = 1 - 1e-6
_AIM = 0.5
"""A clipped update aims at this share of the limit, which may be lower by the time it arrives."""
_PRIVATE_AIM = 0.999
"""An update that is clipped for privacy aims at this share: rounding on the way must not lift it above."""


def clip_norm(limit: float, payload: Payload, state: State, method: Method) -> tuple[Payload, State, bool]:
    """Return an update of at most this norm, the state with the rest in its residual, and whether there was one.

    Methods without full error feedback have nowhere to put the rest: their updates are sent unchanged.
    """
    if not method.traits.conserves_mass or state.residual is None or not 0 < limit < np.inf:
        return payload, state, False
    if payload.norm <= limit:
        return payload, state, False
    part = payload.scaled(np.float32(_AIM * limit / payload.norm))
    return part, _with_rest(payload, part, state), True


def clip_hard(limit: float, payload: Payload, state: State, method: Method) -> tuple[Payload, State]:
    """Return an update of at most this norm as the server will decode it, for a promise of privacy.

    The rest stays in the residual, where the method has one that conserves; else it is discarded.
    """
    if not limit > 0:
        raise ValueError(f"a clip of {limit} is not possible")
    part, share = payload, 1.0
    while part.norm > limit:
        share *= _SAFE * limit / part.norm
        part = payload.scaled(np.float32(share))
    return part, state if part is payload or not method.traits.conserves_mass else _with_rest(payload, part, state)


def clip_exact(
    limit: float, payload: Payload, state: State, before: Record, after: Record
) -> tuple[Payload, State, dict[str, Serialized]]:
    """Return an update of at most this norm, parameters and exact float arrays together, as the server decodes it.

    The rest of the parameters stays in the residual, if the method has one; exact floats move by the same share, and
    are rounded to no more than that.
    """
    if limit == math.inf:
        return payload, state, dict(after)
    moved = {name: delta for name in after if (delta := _moved(before.get(name), after[name])) is not None}
    buffers = math.sqrt(sum(float(np.square(delta).sum()) for delta in moved.values()))
    length = math.hypot(payload.norm, buffers)
    if length <= _PRIVATE_AIM * limit:
        return payload, state, dict(after)
    share, part = _PRIVATE_AIM * limit / length, payload
    while True:
        part = payload.scaled(np.float32(share))
        if math.hypot(part.norm, share * buffers) <= _PRIVATE_AIM * limit * (1 + 1e-4):
            break
        share *= _PRIVATE_AIM
    arrays = dict(after)
    for name, delta in moved.items():
        start, dtype = view(before[name]), after[name].dtype
        moved_to = np.asarray((start.astype(np.float64) + share * delta).astype(dtype))
        beyond = np.abs(moved_to.astype(np.float64) - start) > np.abs(share * delta)
        arrays[name] = to_array(np.where(beyond, np.nextafter(moved_to, start.astype(dtype)), moved_to))
    return part, _with_rest(payload, part, state), arrays


def _moved(before: Serialized | None, after: Serialized) -> NDArray[Any] | None:
    if before is None or before.stype != NUMPY or tuple(before.shape) != tuple(after.shape):
        return None
    values = view(after)
    return values.astype(np.float64) - view(before).astype(np.float64) if values.dtype.kind == "f" else None


def _with_rest(payload: Payload, part: Payload, state: State) -> State:
    """The state when only a part of a payload is sent; unchanged where the method has no residual."""
    if state.residual is None:
        return state
    residual = state.residual.copy()
    payload.add_to(residual, 1.0)
    part.add_to(residual, -1.0)
    return replace(state, feedback=state.feedback | {"residual": residual})
