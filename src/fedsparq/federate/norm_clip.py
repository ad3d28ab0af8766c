"""Sending an update in parts, where the whole would be refused.

A client whose replies were lost for some rounds has much to make up for. Under a norm limit its next update could be
refused as too long, put back, and be longer still in the round after: it would never be heard again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedsparq.layout import Vector
from fedsparq.method import Method
from fedsparq.payload import Payload
from fedsparq.protocols import State

_SAFE = 1 - 1e-6
_AIM = 0.5
"""A clipped update aims at this share of the limit, which may be lower by the time it arrives."""


def clip_norm(limit: float, payload: Payload, state: State, method: Method) -> tuple[Payload, State, bool]:
    """An update of at most this norm, the state with what that leaves over in its residual, and whether it did.

    Methods without full error feedback have nowhere to leave it: their updates are sent as they are.
    """
    if not method.traits.conserves_mass or state.residual is None or not 0 < limit < np.inf:
        return payload, state, False
    if payload.norm <= limit:
        return payload, state, False
    part = payload.scaled(np.float32(_AIM * limit / payload.norm))
    return part, _owed(payload, part, state, state.residual), True


def clip_hard(limit: float, payload: Payload, state: State, method: Method) -> tuple[Payload, State]:
    """An update of at most this norm as the server will decode it, for a promise of privacy.

    What that leaves over waits in the residual, where the method has one that conserves; else it is let go.
    """
    part, share = payload, 1.0
    while part.norm > limit:
        share *= _SAFE * limit / part.norm
        part = payload.scaled(np.float32(share))
    if part is payload or not method.traits.conserves_mass or state.residual is None:
        return part, state
    return part, _owed(payload, part, state, state.residual)


def _owed(payload: Payload, part: Payload, state: State, residual: Vector) -> State:
    """The state when only a part of a payload is sent."""
    residual = residual.copy()
    payload.add_to(residual, 1.0)
    part.add_to(residual, -1.0)
    return replace(state, feedback=state.feedback | {"residual": residual})
