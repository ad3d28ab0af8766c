"""Which replies a server takes, what it says of those it does not, and which methods it cannot keep in step."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsparq.errors import OptionError, WireError
from fedsparq.layout import Buffers, Layout
from fedsparq.method import Method
from fedsparq.payload import ClassLevels, Float32Values, Payload
from fedsparq.wire import decode

ABSURD = 1e6
"""No parameter, statistic or counter of a model in training moves by a million in one round."""
_ALWAYS_SENT = Float32Values, ClassLevels
"""Kinds that any other may become where an update is clipped in norm."""


@dataclass(frozen=True)
class Size:
    """What of a reply can be limited: how far it moves parameters and statistics, and how much it claims to weigh."""

    norm: float = math.inf
    statistics: float = math.inf
    examples: float = math.inf


@dataclass(frozen=True)
class Limit:
    """The largest value that is taken: fixed, or as a multiple of the round's median."""

    value: float = math.inf
    relative: bool = False

    @classmethod
    def parse(cls, name: str, text: str) -> Limit:
        """`off`, a number, or `3x median`."""
        if text.strip().lower() == "off":
            return cls()
        match = re.fullmatch(r"((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(\s*x\s*median)?", text.strip().lower())
        if match is None or not 0 < float(match[1]) < math.inf:
            raise OptionError(f'{name}={text!r} cannot be read; give "off", "10" or "3x median"')
        return cls(float(match[1]), relative=match[2] is not None)

    def bound(self, seen: Sequence[float]) -> float:
        """The largest value that is taken, given all values of the round."""
        return self.value * statistics.median(seen) if self.relative else self.value


@dataclass(frozen=True)
class Validation:
    """When a round counts, and how large an update may be."""

    min_replies: int = 1
    deadline: float | None = None
    """Seconds after which an answer is late: it is refused, and so not acknowledged. The local engine
    says how long each answer took; with Flower the strategy waits no longer."""
    norm_limit: str = "off"
    """`off`; a number: the largest norm an update may have; or `3x median`: as a multiple of the round's median. A
    multiple also limits how far the statistics of a model (BatchNorm) may move."""

    acknowledge: bool = True
    """Whether clients are told which replies counted. If not, they take all for counted: plain error feedback."""
    examples_limit: str = "off"
    """Likewise for the number of examples that a reply claims, where the method weighs replies by it."""

    def __post_init__(self) -> None:
        if self.min_replies < 1:
            raise OptionError(f"min_replies={self.min_replies} is out of range; a round needs at least 1 reply")
        if self.deadline is not None and not self.deadline > 0:
            raise OptionError(f"deadline={self.deadline} is out of range; give seconds above 0, or leave it out")
        Limit.parse("norm_limit", self.norm_limit)
        Limit.parse("examples_limit", self.examples_limit)

    @property
    def needs_whole_round(self) -> bool:
        """Whether no update can be judged before all are there."""
        return self._norm.relative or self._examples.relative

    @property
    def limits_norm(self) -> bool:
        return self._norm.value < math.inf

    def bounds(self, sizes: Sequence[Size]) -> Size:
        """The largest sizes that are taken, given those of the round's replies."""
        return Size(
            self._norm.bound([size.norm for size in sizes]),
            self._norm.bound([size.statistics for size in sizes]) if self._norm.relative else math.inf,
            self._examples.bound([size.examples for size in sizes]),
        )

    @property
    def _norm(self) -> Limit:
        return Limit.parse("norm_limit", self.norm_limit)

    @property
    def _examples(self) -> Limit:
        return Limit.parse("examples_limit", self.examples_limit)


def check_kept_in_step(method: Method, acknowledge: bool, downlink: bool, everyone: bool = True) -> None:
    """Refuse a run in which a method could not keep clients and server in step."""
    if method.traits.needs_acks and not acknowledge:
        raise OptionError(
            f"{method.label!r} moves what clients remember only by replies that counted: acknowledge must be on"
        )
    if method.traits.requires_full_participation and (downlink or not everyone):
        what = "a compressed broadcast" if downlink else "clients that are not asked in every round"
        raise OptionError(
            f"{method.label!r} learns the mean update from two models in a row, which {what} would hide; "
            "leave downlink out and take fraction=1, or choose another method"
        )


def too_large(size: Size, bounds: Size) -> str:
    """Why a reply of this size is refused; empty if it is not."""
    if size.norm > bounds.norm:
        return f"the update's norm {size.norm:.3g} is above the limit {bounds.norm:.3g}"
    if size.statistics > bounds.statistics:
        return f"the statistics moved by {size.statistics:.3g}, above the limit {bounds.statistics:.3g}"
    if size.examples > bounds.examples:
        return f"{size.examples:,.0f} examples are claimed, above the limit {bounds.examples:,.0f}"
    return ""


def decode_sent(blob: bytes, layout: Layout, method: Method) -> Payload:
    """Decode an update of a client; WireError for kinds of values that its method never sends."""
    payload, kinds = decode(blob, layout), method.traits.value_kinds
    for tensor, values in zip(layout.parameters, payload.values, strict=True):
        if kinds and not isinstance(values, (*kinds, *_ALWAYS_SENT)):
            raise WireError(f"layer {tensor.name!r}: {method.name!r} never sends {type(values).__name__}")
    return payload


def check_sound(payload: Payload, before: Buffers | None) -> None:
    """Refuse what no honest training gives. `before`: the buffers that the client started from."""
    if not payload.largest() <= ABSURD:
        raise WireError(f"a value is above {ABSURD:,.0f}: no parameter moves so far in one round")
    if before is None:
        return
    if payload.buffers is None:
        raise WireError("the buffers of the model (statistics and counters) are missing")
    if np.abs(payload.buffers.statistics).max(initial=0) > ABSURD:
        raise WireError(f"a statistic is above {ABSURD:,.0f}")
    counted = payload.buffers.counters.astype(np.float64) - before.counters
    if np.abs(counted).max(initial=0) > ABSURD:
        raise WireError(f"a counter moved by more than {ABSURD:,.0f} in one round")


def size_of(payload: Payload, before: Buffers | None, examples: int, validation: Validation) -> Size:
    """A reply's size, as far as validation cares for it."""
    moved = 0.0
    if before is not None and payload.buffers is not None:
        moved = float(np.linalg.norm(payload.buffers.statistics.astype(np.float64) - before.statistics))
    return Size(payload.norm if validation.limits_norm else 0.0, moved, examples)
