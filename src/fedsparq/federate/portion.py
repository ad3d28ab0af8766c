"""Sending an update in parts, where the whole would be refused.

A client whose replies were lost for some rounds has much to make up for. Under a norm limit its next update could be
refused as too long, put back, and be longer still in the round after: it would never be heard again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedsparq.compress.payload import Floats, Halves, Payload, Values
from fedsparq.compress.pipeline import Method
from fedsparq.compress.state import State
from fedsparq.federate.rules import norm

_AIM = 0.5
"""A shortened update aims at this share of the limit, which may be lower by the time it arrives."""


def within(limit: float, payload: Payload, state: State, method: Method) -> tuple[Payload, State, bool]:
    """An update of at most this norm, the state with what that leaves over in its residual, and whether it did.

    Methods without full error feedback have nowhere to leave it: their updates are sent as they are.
    """
    if method.feedback != "full" or state.residual is None or not 0 < limit < np.inf:
        return payload, state, False
    length = norm(payload)
    if length <= limit:
        return payload, state, False
    share = np.float32(_AIM * limit / length)
    part = replace(payload, values=tuple(_scaled(values, share) for values in payload.values))
    residual = state.residual.copy()
    payload.add_to(residual, 1.0)
    part.add_to(residual, -1.0)
    return part, replace(state, residual=residual), True


def _scaled(values: Values, share: np.float32) -> Values:
    scaled = share * values.decoded()
    return Halves(scaled.astype(np.float16).view(np.uint16)) if isinstance(values, Halves) else Floats(scaled)
