"""How every method works: compensate, choose what to send and how to write it, remember the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from fedsparq.compress.payload import Listed, Payload, Positions, Selection, Values
from fedsparq.compress.quantize import Quantizer, Room
from fedsparq.compress.select import Memory, Selector
from fedsparq.compress.state import Compensated, State, Vector, check_update
from fedsparq.errors import OptionError
from fedsparq.layout import Layout

Feedback = Literal["full", "kept-only", "deferred", "off"]
"""What is remembered of what was not sent: all of it, only the rounding error of what was sent, only what the coder
left in `c` for later (the rest is right on average), or nothing."""


@dataclass(frozen=True)
class Coded:
    """What is sent: which coordinates, said as shortly as possible and as a list, and each layer's values."""

    selection: Selection
    places: Positions
    values: tuple[Values, ...]


class Coder(Protocol):
    """Chooses what to send and how to write it. It takes what will be decoded away from `c`."""

    def init(self, layout: Layout) -> Memory:
        """What it remembers before the first round."""

    def code(self, c: Compensated, rounds: int, memory: Memory, rng: np.random.Generator) -> Coded:
        """The round after `rounds` others. `memory` is the state's, for the coder to bring up to date."""


class Correction(Protocol):
    """Changes updates before they are compensated, and learns what was sent of them."""

    def init(self, layout: Layout) -> Memory:
        """What it remembers before the first round."""

    def before(self, update: Vector, memory: Memory) -> Vector:
        """What is compressed in the update's stead."""

    def after(self, places: Positions, memory: Memory) -> None:
        """These coordinates were sent."""


@dataclass(frozen=True)
class SelectAndQuantize:
    """Choose coordinates by one rule, write their values by another."""

    select: Selector
    quantize: Quantizer

    def init(self, layout: Layout) -> Memory:
        return self.select.init(layout)

    def code(self, c: Compensated, rounds: int, memory: Memory, rng: np.random.Generator) -> Coded:
        choice = self.select.select(c, rounds, memory, rng)
        seed = int(rng.integers(2**63))
        room = Room(max((t.size for t in c.layout.parameters), default=0), self.quantize.dtype)
        kept, values = [np.empty(0, np.uint32)], []
        for index, (tensor, marks) in enumerate(zip(c.layout.parameters, choice.layers, strict=True)):
            sent, layer_values = self.quantize.quantize(c.layer(index), tensor.offset, marks, seed, room)
            kept.append(sent)
            values.append(layer_values)
        places = np.concatenate(kept)
        shortcut = choice.shortcut if choice.shortcut and choice.shortcut.count == places.size else None
        return Coded(shortcut or Listed(places), places, tuple(values))


@dataclass(frozen=True)
class Method:
    """A way to make updates small. It holds no state: `init` makes one, `compress` takes one and returns the next."""

    coder: Coder
    feedback: Feedback = "off"
    weighting: Literal["examples", "uniform"] = "uniform"
    """How the server weighs clients: by their number of examples, or all alike."""
    proximal_mu: float = 0.0
    """FedProx's pull towards the global model while training."""
    server_momentum: float = 0.0
    momentum_restart: bool = False
    """Whether the server drops its momentum in a round whose mean points against it."""
    noisy: bool = False
    """Whether what is sent may be farther from what was to be sent than nothing would be: right only on average."""
    correction: Correction | None = None
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options that differ from the defaults."""

    def __post_init__(self) -> None:
        if not self.proximal_mu >= 0:
            raise OptionError(f"proximal_mu={self.proximal_mu} is out of range; it must be at least 0")
        if not 0 <= self.server_momentum < 1:
            raise OptionError(f"server_momentum={self.server_momentum} is out of range; it must be in [0, 1)")

    @property
    def label(self) -> str:
        """The name with the options that differ from the defaults: `fedsparq multiplier=2`."""
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])

    def init(self, layout: Layout) -> State:
        """The state before the first round."""
        residual = None if self.feedback == "off" else np.zeros(layout.size, np.float32)
        memory = self.coder.init(layout) | (self.correction.init(layout) if self.correction else {})
        return State(layout, residual=residual, memory=memory)

    def compress(
        self, update: Vector, state: State, rng: np.random.Generator, *, recycle: State | None = None
    ) -> tuple[Payload, State]:
        """Make an update small. Neither `update` nor `state` is changed.

        `recycle` is an older state that nobody needs any more: its memory is overwritten instead of new memory taken.
        """
        layout = state.layout
        update = check_update(update, layout)
        memory = {key: array.copy() for key, array in state.memory.items()}
        if self.correction:
            update = self.correction.before(update, memory)
        c = Compensated(layout, update, state.residual, _room(layout, state, recycle))
        coded = self.coder.code(c, state.rounds, memory, rng)
        if self.correction:
            self.correction.after(coded.places, memory)
        payload = Payload(layout, coded.selection, coded.values)
        return payload, State(layout, state.rounds + 1, self._residual(c.vector, coded.places), memory)

    def _residual(self, c: Vector, places: Positions) -> Vector | None:
        match self.feedback:
            case "full" | "deferred":
                return c
            case "kept-only":
                residual = np.zeros_like(c)
                residual[places] = c[places]
                return residual
            case "off":
                return None


def _room(layout: Layout, state: State, recycle: State | None) -> Vector:
    """Memory for the compensated update."""
    room = recycle.residual if recycle else None
    if room is None or room.shape != (layout.size,) or room is state.residual:
        return np.empty(layout.size, np.float32)
    return room
