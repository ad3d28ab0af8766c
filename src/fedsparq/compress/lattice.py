"""Whole-number levels on a common support: what can be summed under masks, and made private."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import component
from fedsparq.payload import Payload, Sparse, UniformLevels
from fedsparq.payload.levels import MAX_LEVEL
from fedsparq.payload.support import support_of
from fedsparq.protocols import Compressed

_SAFE = 1 - 1e-6
"""What is clipped stays this far below its bound, so that no rounding of float32 lifts it above."""
_PLAN = "plan."


@component
class CommonLattice:
    """Levels -top to top, a step apart, of just the coordinates that the server named for this round.

    The server's plan says support, step and, in a private run, clip and another `top`. Without a clip levels are the
    nearest. With one, what is on the support is first scaled down to the clip's norm, and levels are rounded towards
    zero: step times the norm of the levels is never above the clip. What is not sent waits in the residual.
    """

    top: Annotated[int, Field(ge=1, le=MAX_LEVEL)] = 2
    common_support: ClassVar[bool] = True

    def init(self, layout: Layout) -> Arrays:
        return {}

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        plan = {name.removeprefix(_PLAN): array for name, array in state.items()}
        indices, step = support_of(plan, layout.size), np.float32(plan["step"][0])
        clip, top = float(plan.get("clip", [0.0])[0]), int(plan.get("top", [self.top])[0])
        levels = lattice_levels(update[indices], step, min(top, MAX_LEVEL), clip)
        sent = np.flatnonzero(levels)
        cuts = np.searchsorted(indices[sent], layout.bounds.astype(np.uint32))
        values = tuple(UniformLevels(step, levels[sent[a:b]]) for a, b in pairwise(cuts))
        return Payload(layout, Sparse(indices[sent]), values), state


def lattice_levels(
    values: Vector, step: np.float32, top: int, clip: float = 0.0
) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    """The levels of some values."""
    scaled = values.astype(np.float64)
    if clip:
        norm = float(np.linalg.norm(scaled))
        scaled *= min(1.0, _SAFE * clip / norm) if norm else 1.0
    levels = scaled / float(step)
    levels = np.trunc(levels) if clip else np.rint(levels)
    return np.clip(levels, -top, top).astype(np.int16)
