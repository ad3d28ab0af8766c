"""The adaptive method as clients use it: what is sent is right on average, in every message anew.

docs/ADAPTIVE.md derives the rule, and tells why it suits clients better than full error feedback.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsparq.compress import adaptive_kernels as kernels
from fedsparq.compress.adaptive import Curves, falling_root
from fedsparq.compress.budget import Attempt, Room
from fedsparq.compress.payload import Listed, Steps
from fedsparq.compress.pipeline import Coded
from fedsparq.compress.select import Memory
from fedsparq.compress.state import Compensated, Vector
from fedsparq.errors import OptionError
from fedsparq.layout import Layout

_MOST_STEPS = 32_000
"""No magnitude is more steps than this, so that every level is an int16."""
_TINY = np.finfo(np.float32).tiny
_REFINEMENT = 0.5
"""To this power of its mean magnitude, a layer's steps become finer."""
_LOUDEST = 1024.0
"""Differences in mean magnitude beyond this factor change no step."""


@dataclass(frozen=True)
class Dithered:
    """Round every coordinate at random to one of the two steps beside it, with the right mean, as far as there is room.

    Each layer has its step, the finer the louder it is. What is below `deferred` steps is not drawn at all but kept
    for later rounds; what was drawn is not kept, whether it became a step or zero: on average it was sent.
    """

    room: Room
    deferred: float

    def __post_init__(self) -> None:
        if not 0 <= self.deferred < 1:
            raise OptionError(f"deferred={self.deferred} is out of range; it must be at least 0 and below 1, as 0.3 is")

    def init(self, layout: Layout) -> Memory:
        return self.room.init(layout)

    def code(self, c: Compensated, rounds: int, memory: Memory, rng: np.random.Generator) -> Coded:
        c.load_all()
        steps, seed = _LayerSteps(Curves(c), self.deferred), np.uint64(rng.integers(2**63))

        def send(bits: float, price: float) -> Attempt:
            step, everything = steps.spending(bits, price)
            return Attempt(self._drawn(c, steps.at(step), seed), steps.bits(step), step, everything)

        coded = self.room.fill(c.layout, rounds, memory, send)
        step = float(memory["price"][0])
        if step > 0:
            kernels.forget(c.vector, c.layout.bounds, self._leasts(steps.at(step)))
        return coded

    def _leasts(self, steps: Vector) -> Vector:
        """The least magnitudes that are drawn: never 0, which would draw every coordinate for nothing."""
        return (np.float32(self.deferred) * steps).clip(_TINY)

    def _drawn(self, c: Compensated, steps: Vector, seed: np.uint64) -> Coded:
        places, levels = np.empty(c.layout.size, np.uint32), np.empty(c.layout.size, np.int16)
        ends = np.empty(steps.size, np.int64)
        count = kernels.draw(c.vector, c.layout.bounds, steps, self._leasts(steps), seed, places, levels, ends)
        places, levels = places[:count].copy(), levels[:count].copy()
        values = tuple(Steps(*pair) for pair in zip(steps, np.split(levels, ends)[:-1], strict=True))
        return Coded(Listed(places), places, values)


class _LayerSteps:
    """The step of each layer, as a function of the model's: the louder a layer, the finer."""

    def __init__(self, curves: Curves, deferred: float) -> None:
        self._curves, self._deferred = curves, deferred
        loudness = curves.means / (curves.mean or 1.0)
        self._ratios = np.clip(loudness, 1 / _LOUDEST, _LOUDEST) ** -_REFINEMENT
        self._finest = np.maximum(curves.peaks / _MOST_STEPS, _TINY)

    def at(self, step: float) -> Vector:
        """The layers' steps as they travel, rounded up to the upper half of a float32."""
        raw = np.clip(step * self._ratios, self._finest, 2.0**127).astype(np.float32).view(np.uint32)
        return ((raw + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)

    def bits(self, step: float) -> float:
        """The bits to expect."""
        return self._curves.drawn_bits(np.maximum(step * self._ratios, self._finest), self._deferred)

    def spending(self, bits: float, guess: float) -> tuple[float, bool]:
        """The step that spends about so many bits, and whether even the finest spends less."""
        finest = (self._finest / self._ratios).min(initial=1.0)
        coarsest = np.log(self._curves.largest) + 25
        start = np.log(guess or self._curves.largest)
        log_step, everything = falling_root(lambda x: self.bits(np.exp(x)), bits, start, np.log(finest), coarsest)
        return float(np.exp(log_step)), everything
