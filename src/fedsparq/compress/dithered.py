"""The adaptive method as clients use it: what is sent is right on average, in every message anew.

docs/ADAPTIVE.md derives the rule, and tells why it suits clients better than full error feedback.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsparq.compress import adaptive_kernels as kernels
from fedsparq.compress.adaptive import Curves, falling_root
from fedsparq.compress.budget import Attempt, Room
from fedsparq.compress.payload import Listed, Steps, Values
from fedsparq.compress.pipeline import Coded
from fedsparq.compress.select import Memory, at_least
from fedsparq.compress.state import Compensated
from fedsparq.errors import OptionError
from fedsparq.layout import Layout

_MOST_STEPS = 32_000
"""No magnitude is more steps than this."""


@dataclass(frozen=True)
class Dithered:
    """Round every coordinate at random to one of the two steps beside it, with the right mean, as far as there is room.

    One step for the whole model. What is below `deferred` steps is not drawn at all but kept for later rounds; what
    was drawn is not kept, whether it became a step or zero: on average it was sent.
    """

    room: Room
    deferred: float

    def __post_init__(self) -> None:
        if not 0 <= self.deferred < 1:
            raise OptionError(f"deferred={self.deferred} is out of range; it must be at least 0 and below 1, as 0.1 is")

    def init(self, layout: Layout) -> Memory:
        return self.room.init(layout)

    def code(self, c: Compensated, rounds: int, memory: Memory, rng: np.random.Generator) -> Coded:
        c.load_all()
        curves, seed = Curves(c), np.uint64(rng.integers(2**63))

        def send(bits: float, price: float) -> Attempt:
            step, everything = self._step(curves, bits, price)
            expected = curves.drawn_bits(float(step), self.deferred)
            return Attempt(self._drawn(c, step, seed), expected, float(step), everything)

        coded = self.room.fill(c.layout, rounds, memory, send)
        step = np.float32(memory["price"][0])
        if step > 0:
            kernels.forget(c.vector, self._least(step))
        return coded

    def _least(self, step: np.float32) -> np.float32:
        """The least magnitude that is drawn: never 0, which would draw every coordinate for nothing."""
        return max(np.float32(self.deferred) * step, np.finfo(np.float32).tiny)

    def _step(self, curves: Curves, bits: float, guess: float) -> tuple[np.float32, bool]:
        """The step that spends about so many bits, to the upper half of its float32: that is all that travels."""
        finest, coarsest = np.log(curves.largest / _MOST_STEPS), np.log(curves.largest) + 25
        log_step, everything = falling_root(
            lambda x: curves.drawn_bits(np.exp(x), self.deferred),
            bits,
            np.log(guess or curves.largest),
            finest,
            coarsest,
        )
        raw = np.float32(np.exp(log_step)).view(np.uint32)
        return np.uint32((raw + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32), everything

    def _drawn(self, c: Compensated, step: np.float32, seed: np.uint64) -> Coded:
        kept, values = [np.empty(0, np.uint32)], list[Values]()
        for index, tensor in enumerate(c.layout.parameters):
            layer = c.layer(index)
            marks = at_least(layer, self._least(step))
            positions, levels = np.empty(marks.count, np.uint32), np.empty(marks.count, np.int16)
            count = kernels.draw(layer, marks.words, tensor.offset, np.float64(step), seed, positions, levels)
            kept.append(positions[:count])
            values.append(Steps(step, levels[:count]))
        places = np.concatenate(kept)
        return Coded(Listed(places), places, tuple(values))
