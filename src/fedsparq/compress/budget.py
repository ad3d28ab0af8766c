"""Byte budgets: how many bytes a message may take, and the candidate that fits them best."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsparq.errors import OptionError
from fedsparq.layout import Arrays, Layout
from fedsparq.options import Decay, component
from fedsparq.payload import Codebook, Payload, Sparse

Bits = Annotated[float, Field(gt=0, le=32)]
"""Bits a parameter."""

_TARGET_FILL = 0.978
_MIN_FILL = 0.956
_MAX_TRIES = 16
_SMALL, _LARGE = 0.75, 1.03
"""Bits on the wire per bit of the model, before it is measured: with context coding, and without."""


@dataclass(frozen=True)
class Candidate:
    """A payload that could be sent, and how many bits a model of the wire expects."""

    payload: Payload
    bits: float
    lagrange: float
    """What was chosen so that the bits come out right: a Lagrange multiplier, or the step it stands for."""
    sends_all: bool
    """Whether there is no more to send."""


MakeCandidate = Callable[[float, float], Candidate]
"""Build a payload of about `bits` bits; the second number is a guess at its `lagrange`, 0 if there is none."""


@component
class ByteBudget:
    """The byte budget of a message.

    `budget` is the most bytes, buffers and counters included; 0: `bits` per parameter, without buffers and counters.
    How many bits the wire takes per bit of the model is measured, and smoothed by `beta`. `encode` is the wire's, which
    codes by context up to `context_limit` coordinates.
    """

    bits: Bits
    budget: Annotated[int, Field(ge=0)]
    beta: Decay
    encode: Callable[[Payload], bytes]
    context_limit: int

    def init(self, layout: Layout) -> Arrays:
        """Return the state before the first round; OptionError if not even an empty message fits."""
        return {
            "bytes": np.array([self.bytes(layout)]),
            "efficiency": np.zeros(1),
            "lagrange": np.zeros(1),
            "rounds": np.zeros(1),
        }

    def init_whole(self, size: int) -> Arrays:
        """Return the state for a model of `size` coordinates that is compressed in pieces."""
        if self.budget:
            raise OptionError(
                f"budget={self.budget} bytes is kept by measuring whole messages, which a model in pieces has not; say "
                "instead how many bits a parameter there are, such as bits=0.3"
            )
        state = {"efficiency": np.zeros(1), "lagrange": np.zeros(1), "rounds": np.zeros(1)}
        return {"bytes": np.array([int(self.bits * size / 8)]), **state}

    def target_bits(self, state: Arrays, small: bool = False) -> tuple[float, float]:
        """Return the bits of the model to spend, and a guess at their `lagrange`."""
        expected = float(state["efficiency"][0]) or (_SMALL if small else _LARGE)
        return _TARGET_FILL * 8 * int(state["bytes"][0]) / expected, float(state["lagrange"][0])

    def next_state(self, state: Arrays, lagrange: float, efficiency: float | None = None) -> Arrays:
        """Return the state after a message; `efficiency` is what is now known of the wire, None for nothing new."""
        after = {"lagrange": lagrange, "rounds": state["rounds"][0] + 1.0}
        after |= {} if efficiency is None else {"efficiency": efficiency}
        return {**state, **{key: np.array([value]) for key, value in after.items()}}

    def bytes(self, layout: Layout) -> int:
        """Return the bytes for a message without buffers and counters."""
        smallest = len(self.encode(_nothing(layout)))
        if not self.budget:
            return max(int(self.bits * layout.size / 8), smallest)
        buffers = 4 * layout.buffer_size + 8 * layout.counter_size + 2
        if self.budget < buffers + smallest:
            raise OptionError(
                f"budget={self.budget} bytes is too small for this model; an empty message takes {buffers + smallest}"
            )
        return self.budget - buffers

    def fill(self, layout: Layout, state: Arrays, make: MakeCandidate) -> tuple[Candidate, Arrays]:
        """Build the largest candidate that fits, by the model's bits, corrected by what the wire takes for them.

        With a budget, every message is encoded and measured. Without one, that would be most of the work: those of a
        small model are measured in rounds 0, 1, 2, 4, 8 and so on, those of a large one, which vary little, never.
        """
        small, most, rounds = layout.size <= self.context_limit, int(state["bytes"][0]), int(state["rounds"][0])
        candidate, efficiency = make(*self.target_bits(state, small)), None
        if self.budget or (small and rounds & (rounds - 1) == 0):
            expected = float(state["efficiency"][0]) or (_SMALL if small else _LARGE)
            candidate, seen = self._fit(layout, most, candidate, make)
            efficiency = seen if rounds == 0 else self.beta * expected + (1 - self.beta) * seen
        return candidate, self.next_state(state, candidate.lagrange, efficiency)

    def _fit(
        self, layout: Layout, available: int, candidate: Candidate, make: MakeCandidate
    ) -> tuple[Candidate, float]:
        """Return the best of several candidates that fits, with its message, and what the wire made of a bit of it."""
        best, seen = Candidate(_nothing(layout), 0.0, 0.0, False), 1.0
        bits, least, most, push = candidate.bits, 0.0, math.inf, 1.0
        for _ in range(_MAX_TRIES):
            message = self.encode(candidate.payload)
            size = len(message)
            if size <= available:
                best = replace(candidate, payload=candidate.payload.with_message(message))
                seen, least = 8 * size / max(candidate.bits, 1.0), bits
                if size >= _MIN_FILL * available or candidate.sends_all:
                    break
            else:
                most = bits
            bits *= (_TARGET_FILL * available / size) ** push
            push = min(1.5 * push, 4.0)
            if not least < bits < most:
                bits = math.sqrt(least * most) if least else most / 2
            candidate = make(bits, candidate.lagrange)
        return best, seen


def _nothing(layout: Layout) -> Payload:
    empty = Codebook(np.empty(0, np.float32), np.empty(0, np.int16))
    return Payload(layout, Sparse(np.empty(0, np.uint32)), (empty,) * len(layout.parameters))
