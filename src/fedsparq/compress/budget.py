"""How many bytes there are to spend, and a message that fits them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsparq.compress.payload import Listed, Magnitudes, Payload
from fedsparq.compress.pipeline import Coded
from fedsparq.compress.select import Memory
from fedsparq.errors import OptionError
from fedsparq.layout import Layout
from fedsparq.wire.frame import encode
from fedsparq.wire.levels import CONTEXT_TO

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_AIM = 0.978
_ENOUGH = 0.956
_TRIES = 16
_SMALL, _LARGE = 0.75, 1.03
"""What the wire makes of a bit of the model, before it was seen: where coding is by context, and where not."""
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*")


def parse_bytes(amount: str | int) -> int:
    """A number of bytes from text such as "20 kB", "5 MB", "1.5 MiB" or "4096".

    >>> parse_bytes("20 kB"), parse_bytes("1.5 KiB"), parse_bytes(300)
    (20000, 1536, 300)
    """
    found = _AMOUNT.fullmatch(str(amount))
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise OptionError(f"{amount!r} is not an amount of bytes; write one such as '20 kB', '5 MB' or '1.5 MiB'")
    count = int(float(found[1]) * unit)
    if count < 1:
        raise OptionError(f"{amount!r} is less than one byte")
    return count


@dataclass(frozen=True)
class Attempt:
    """What could be sent, how many bits a model of the wire gives it, and at which price of a bit it was chosen."""

    coded: Coded
    bits: float
    price: float
    everything: bool
    """Whether there is no more to send."""


Sender = Callable[[float, float], Attempt]
"""An attempt to spend so many bits; the second number is a guess at its price, 0 if there is none."""


@dataclass(frozen=True)
class Room:
    """The bytes of a message.

    `budget` is the most it may take, buffers and counters included; 0 stands for `bits` a parameter, buffers and
    counters apart. What the wire made of the model's bits is remembered, and smoothed by `beta`.
    """

    bits: float
    budget: int = 0
    beta: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.bits <= 32:
            raise OptionError(f"bits={self.bits} is out of range; above 0 and up to 32 bits a parameter can be spent")
        if not 0 <= self.beta < 1:
            raise OptionError(f"beta={self.beta} is out of range; it must be at least 0 and below 1, such as 0.9")

    def init(self, layout: Layout) -> Memory:
        """What is remembered before the first round; an error if not even an empty message fits."""
        return {"room": np.array([self.bytes(layout)]), "efficiency": np.zeros(1), "price": np.zeros(1)}

    def bytes(self, layout: Layout) -> int:
        """The bytes for a message without its exact part."""
        smallest = _size(layout, _nothing(layout))
        if not self.budget:
            return max(int(self.bits * layout.size / 8), smallest)
        exact = 4 * layout.buffer_size + 8 * layout.counter_size + 2
        if self.budget < exact + smallest:
            raise OptionError(
                f"budget={self.budget} bytes is too small for this model; an empty message takes {exact + smallest}"
            )
        return self.budget - exact

    def fill(self, layout: Layout, rounds: int, memory: Memory, send: Sender) -> Coded:
        """As much as there is room for: by the model's bits, put right by what the wire makes of them.

        A budget is kept by measuring every message. Without one, that would be most of the work: a small model's are
        measured in rounds 0, 1, 2, 4, 8 and so on, a large one's, whose coding holds no surprise, never.
        """
        small, room = layout.size <= CONTEXT_TO, int(memory["room"][0])
        expected = float(memory["efficiency"][0]) or (_SMALL if small else _LARGE)
        attempt = send(_AIM * 8 * room / expected, float(memory["price"][0]))
        if self.budget or (small and rounds & (rounds - 1) == 0):
            attempt, seen = _fit(layout, room, attempt, send)
            memory["efficiency"][0] = seen if rounds == 0 else self.beta * expected + (1 - self.beta) * seen
        memory["price"][0] = attempt.price
        return attempt.coded


def _fit(layout: Layout, room: int, attempt: Attempt, send: Sender) -> tuple[Attempt, float]:
    """The best of several attempts that fits, and what the wire made of a bit of it."""
    best, seen = Attempt(_nothing(layout), 0.0, 0.0, False), 1.0
    bits, least, most, push = attempt.bits, 0.0, math.inf, 1.0
    for _ in range(_TRIES):
        size = _size(layout, attempt.coded)
        if size <= room:
            best, seen, least = attempt, 8 * size / max(attempt.bits, 1.0), bits
            if size >= _ENOUGH * room or attempt.everything:
                break
        else:
            most = bits
        bits *= (_AIM * room / size) ** push
        push = min(1.5 * push, 4.0)
        if not least < bits < most:
            bits = math.sqrt(least * most) if least else most / 2
        attempt = send(bits, attempt.price)
    return best, seen


def _nothing(layout: Layout) -> Coded:
    empty = Magnitudes(np.empty(0, np.float32), np.empty(0, np.int16))
    places = np.empty(0, np.uint32)
    return Coded(Listed(places), places, (empty,) * len(layout.parameters))


def _size(layout: Layout, coded: Coded) -> int:
    return len(encode(Payload(layout, coded.selection, coded.values)))
