"""Whole-number levels on a common support: what can be summed under masks, and made private."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedsparq.errors import WireError
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import component
from fedsparq.payload import Payload, Sparse, UniformLevels
from fedsparq.payload.levels import MAX_LEVEL
from fedsparq.protocols import Compressed, CompressorTraits, RoundContext

_SAFE = 1 - 1e-6
"""What is clipped stays this far below its bound, so that no rounding of float32 lifts it above."""


@component
class CommonLattice:
    """Levels -top to top, a step apart, of just the coordinates that the server named for this round.

    The round plan has support, step and, in a private run, clip and another `top`. Without a clip levels are the
    nearest. With one, what is on the support is first scaled down to the clip's norm, and levels are rounded towards
    zero: step times the norm of the levels is never above the clip. What is not sent waits in the residual.
    """

    top: Annotated[int, Field(ge=1, le=MAX_LEVEL)] = 2
    traits: ClassVar[CompressorTraits] = CompressorTraits(has_common_support=True, uses_plan=True, wants_context=True)

    def init(self, layout: Layout) -> Arrays:
        return {}

    def compress(
        self,
        update: Vector,
        layout: Layout,
        state: Arrays,
        rng: np.random.Generator,
        context: RoundContext | None = None,
    ) -> Compressed:
        plan = context.plan if context is not None else None
        if plan is None or plan.support is None:
            raise WireError("the server's broadcast has no support for this round, which this method needs")
        indices, step = plan.support.indices(layout.size), np.float32(plan.step)
        levels = lattice_levels(update[indices], step, plan.top or self.top, plan.clip)
        sent = np.flatnonzero(levels)
        cuts = np.searchsorted(indices[sent], layout.bounds.astype(np.uint32))
        values = tuple(UniformLevels(step, levels[sent[a:b]]) for a, b in pairwise(cuts))
        return Payload(layout, Sparse(indices[sent]), values), state


def lattice_levels(
    values: Vector, step: np.float32, top: int, clip: float = math.inf
) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    """The levels of some values."""
    scaled, clipped = values.astype(np.float64), clip < math.inf
    if clipped:
        norm = float(np.linalg.norm(scaled))
        scaled *= min(1.0, _SAFE * clip / norm) if norm else 1.0
    levels = scaled / float(step)
    levels = np.trunc(levels) if clipped else np.rint(levels)
    return np.clip(levels, -top, top).astype(np.int16)
