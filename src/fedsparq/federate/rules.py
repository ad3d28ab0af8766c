"""Which replies a server takes, and what it says of those it does not."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsparq.compress.payload import Payload
from fedsparq.errors import OptionError

ABSURD = 1e6
"""No parameter of a model in training moves by a million in one round."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a client's part in a round."""

    client: int
    round: int
    reason: str


@dataclass(frozen=True)
class Rules:
    """When a round counts, and how large an update may be."""

    min_replies: int = 1
    deadline: float | None = None
    """Seconds after which a round is closed with the replies that are there."""
    norm_limit: str = "off"
    """`off`; a number: the largest norm an update may have; or `3x median`: as a multiple of the round's median."""

    acknowledge: bool = True
    """Whether clients are told which replies counted. If not, they take all for counted: plain error feedback."""

    def __post_init__(self) -> None:
        if self.min_replies < 1:
            raise OptionError(f"min_replies={self.min_replies} is out of range; a round needs at least 1 reply")
        if self.deadline is not None and not self.deadline > 0:
            raise OptionError(f"deadline={self.deadline} is out of range; give seconds above 0, or leave it out")
        self._limit()

    @property
    def needs_whole_round(self) -> bool:
        """Whether no update can be judged before all are there."""
        return self._limit()[1] is not None

    def norm_bound(self, norms: Sequence[float]) -> float:
        """The largest norm that is taken, given the norms of the round's updates."""
        fixed, multiple = self._limit()
        return fixed if multiple is None else multiple * statistics.median(norms)

    def _limit(self) -> tuple[float, float | None]:
        """(fixed bound, multiple of the median): one of them counts."""
        text = self.norm_limit.strip().lower()
        if text == "off":
            return float("inf"), None
        match = re.fullmatch(r"([0-9.]+(?:e[+-]?\d+)?)(\s*x\s*median)?", text)
        try:
            value = float(match[1]) if match else 0.0
        except ValueError:
            value = 0.0
        if match is None or value <= 0:
            raise OptionError(f'norm_limit={self.norm_limit!r} cannot be read; give "off", "10" or "3x median"')
        return (float("inf"), value) if match[2] else (value, None)


def largest_magnitude(payload: Payload) -> float:
    return max((float(np.abs(values.decoded()).max(initial=0)) for values in payload.values), default=0.0)


def norm(payload: Payload) -> float:
    squares = (np.square(values.decoded(), dtype=np.float64).sum() for values in payload.values)
    return float(np.sqrt(sum(squares)))
