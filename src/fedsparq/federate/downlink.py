"""How the model reaches the clients: whole each time, or as compressed changes to the model a client is known to hold.

With a method, all clients train on one public model that follows the server's own. What the changes did not carry is
the difference between the two, so the next change makes up for it: the server's error feedback.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import xxhash

from fedsparq.federate.model import Model
from fedsparq.layout import Layout
from fedsparq.method import Method
from fedsparq.protocols import State
from fedsparq.wire import encode

HISTORY = 64
"""For so many rounds at most changes are kept, for clients that missed some; fewer if the model itself is shorter."""


@dataclass
class Downlink:
    """The sending side of the broadcast."""

    layout: Layout
    method: Method | None = None
    seed: int = 0
    halve_first: bool = False
    """Whether clients start from the first model rounded to float16: with a method, few others travel whole."""
    public: Model | None = None
    round: int = 0
    state: State | None = None
    changes: dict[int, bytes] = field(default_factory=dict)
    """The change that led to each of the last rounds' public models."""
    held: dict[int, int] = field(default_factory=dict)
    """For each client, the round whose public model it is known to hold."""
    digest: int = 0
    """Of the public model's parameters, where clients hold it: one that built another asks for the whole."""
    _whole: bytes = b""

    @property
    def compressed(self) -> bool:
        return self.method is not None

    def prepare(self, number: int, model: Model) -> None:
        """Make the public model of a round; once, however often the round is opened."""
        if number == self.round and self.public is not None:
            return
        if self.method is None:
            self.public = model
        elif self.public is None:
            self.public = model.halved() if self.halve_first else model
        else:
            self._change(self.method, self.public, number, model)
        self.round = number
        self.refresh()

    def refresh(self) -> None:
        """The public model was set: nothing made from another is sent."""
        self._whole = b""
        if self.method is not None and self.public is not None:
            self.digest = xxhash.xxh3_64_intdigest(self.public.vector.data)

    def parts(self, client: int) -> tuple[int, tuple[bytes, ...]]:
        """For a client: 0 and the whole model, or the round it holds and the changes since, whichever is shorter."""
        if self.public is None:
            raise ValueError("prepare comes before parts")
        base = self.held.get(client, 0)
        missed = range(base + 1, self.round + 1)
        if base and all(number in self.changes for number in missed):
            changes = tuple(self.changes[number] for number in missed)
            if sum(map(len, changes)) < 4 * self.layout.size:
                return base, changes
        self._whole = self._whole or self.public.encode(self.layout)
        return 0, (self._whole,)

    def holds(self, client: int, number: int) -> None:
        """The client has shown, by answering, that it holds a round's model."""
        if self.compressed:
            self.held[client] = number

    def forget(self, client: int) -> bool:
        """The client has lost its model; whether it was thought to hold one."""
        return self.held.pop(client, None) is not None

    def _change(self, method: Method, public: Model, number: int, model: Model) -> None:
        state, rng = self.state or method.init(self.layout), np.random.default_rng([self.seed, number, 2])
        payload, state = method.compress(model.vector - public.vector, _owing_nothing(state), rng)
        self.state = _owing_nothing(state)
        payload = replace(payload, buffers=model.buffers)
        self.public = public.plus(payload)
        self.changes[number] = encode(payload)
        while len(self.changes) > HISTORY or sum(map(len, self.changes.values())) > 4 * self.layout.size:
            del self.changes[min(self.changes)]


def _owing_nothing(state: State) -> State:
    """The state without its residual: what a change did not carry is in the next difference already."""
    if state.residual is None:
        return state
    return replace(state, feedback=state.feedback | {"residual": np.zeros(state.layout.size, np.float32)})
