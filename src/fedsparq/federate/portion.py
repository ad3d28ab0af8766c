"""Sending an update in parts, where the whole would be refused.

A client whose replies were lost for some rounds has much to make up for. Under a norm limit its next update could be
refused as too long, put back, and be longer still in the round after: it would never be heard again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress.payload import Payload
from fedsparq.compress.pipeline import Method
from fedsparq.compress.state import State
from fedsparq.federate.rules import norm

_AIM = 0.5
"""A shortened update aims at this share of the limit, which may be lower by the time it arrives."""
_TRIES = 4


def compress_within(
    limit: float, method: Method, update: NDArray[np.float32], state: State, seed: Sequence[int]
) -> tuple[Payload, State, bool]:
    """Compress an update to at most this norm; what that leaves over stays in the residual. True if it did.

    Methods without full error feedback have nowhere to leave it, and those that change updates before they are
    compensated cannot be given part of one: their updates are sent as they are.
    """
    payload, after = method.compress(update, state, np.random.default_rng(seed))
    if state.residual is None or method.feedback != "full" or method.correction is not None:
        return payload, after, False
    whole, share = update + state.residual, 1.0
    empty = replace(state, residual=np.zeros_like(state.residual))
    for _ in range(_TRIES):
        length = norm(payload) if np.isfinite(limit) else 0.0
        if length <= limit:
            break
        share *= _AIM * limit / length
        part = np.float32(share) * whole
        payload, after = method.compress(part, empty, np.random.default_rng(seed))
        after = replace(after, residual=_sum(after.residual, whole - part))
    return payload, after, share < 1


def _sum(left: NDArray[np.float32] | None, right: NDArray[np.float32]) -> NDArray[np.float32]:
    return right if left is None else left + right
