"""A client as a state machine: broadcast bytes in, reply bytes out, and nothing lost in between.

Its last reply stays in flight until a later broadcast tells whether the server counted it. What was not counted goes
back into the residual. The state is safe in the store before the reply leaves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress.pipeline import Method
from fedsparq.errors import WireError
from fedsparq.federate.messages import Broadcast, FullWanted, Reply, describe, method_digest
from fedsparq.federate.model import Model
from fedsparq.federate.state import ClientState
from fedsparq.federate.store import Store
from fedsparq.layout import Exact, Layout
from fedsparq.wire.frame import decode, encode


@dataclass(frozen=True)
class Trained:
    """What local training gave: the change of the parameters, and the statistics and counters as they are now."""

    update: NDArray[np.float32]
    examples: int
    exact: Exact | None = None


Train = Callable[[Model, Method, int], Trained]
"""Trains on a model by a method's rules (its proximal term) in a round."""


@dataclass(frozen=True)
class Answer:
    """A client's answer: a message, or none to a broadcast that is out of date; and what it has to say about itself."""

    message: bytes | None
    remarks: tuple[str, ...] = ()
    sent: int = 0
    """How many bytes left the client, whether or not they arrive."""
    train_seconds: float = 0.0
    compress_seconds: float = 0.0


@dataclass(frozen=True)
class Client:
    """One client of a federation. All it remembers is in the store."""

    number: int
    layout: Layout
    train: Train
    store: Store
    seed: int = 0

    def answer(self, message: bytes) -> Answer:
        """Train on a broadcast's model and reply. The same broadcast again gets the same reply again."""
        return self.respond(Broadcast.decode(message))

    def respond(self, broadcast: Broadcast) -> Answer:
        """`answer` to a broadcast that was read already."""
        if broadcast.layout_digest != self.layout.digest:
            raise WireError(
                f"the server's model has digest {broadcast.layout_digest:016x}, "
                f"this client's {self.layout.digest:016x}: both sides must build the same model"
            )
        loaded = self.store.load(self.number, self.layout)
        remarks = [loaded.remark] if loaded.remark else []
        if loaded.state and loaded.state.round == broadcast.round and loaded.state.in_flight:
            again = loaded.state.in_flight
            return Answer(again, (*remarks, "broadcast came again: same reply sent again"), len(again))
        if loaded.state and loaded.state.round >= broadcast.round:
            return Answer(None, (*remarks, f"broadcast of round {broadcast.round} is out of date: ignored"))
        model = self._model(broadcast, loaded.state)
        if model is None:
            wanted = FullWanted(broadcast.round).encode()
            return Answer(wanted, (*remarks, "model not at hand: whole model asked for"), len(wanted))
        state, remark = settle(loaded.state, broadcast, self.layout)
        return self._work(broadcast, model, state, (*remarks, remark) if remark else tuple(remarks))

    def _work(self, broadcast: Broadcast, model: Model, state: ClientState, remarks: tuple[str, ...]) -> Answer:
        start = time.perf_counter()
        trained = self.train(model, broadcast.method, broadcast.round)
        trained_at = time.perf_counter()
        rng = np.random.default_rng([self.seed, broadcast.round, self.number, 1])
        payload, compression = broadcast.method.compress(trained.update, state.compression, rng)
        blob = encode(replace(payload, exact=trained.exact))
        reply = Reply(broadcast.round, method_digest(broadcast.method), trained.examples, blob).encode()
        held = model if broadcast.hold else None
        self.store.save(
            self.number, replace(state, compression=compression, round=broadcast.round, in_flight=reply, model=held)
        )
        return Answer(reply, remarks, len(reply), trained_at - start, time.perf_counter() - trained_at)

    def _model(self, broadcast: Broadcast, state: ClientState | None) -> Model | None:
        """The round's model: sent whole, or made from what is held and the changes since; None if that cannot be."""
        if not broadcast.base:
            return Model.decode(broadcast.blobs[0], self.layout)
        if state is None or state.model is None or not broadcast.base <= state.round < broadcast.round:
            return None
        model = state.model
        for blob in broadcast.blobs[state.round - broadcast.base :]:
            model = model.plus(decode(blob, self.layout))
        return model


def settle(state: ClientState | None, broadcast: Broadcast, layout: Layout) -> tuple[ClientState, str]:
    """The state to go on from, now that the server has told which reply it counted last; and what there is to say."""
    name = describe(broadcast.method).decode()
    fresh = ClientState(broadcast.method.init(layout), name)
    if state is None:
        lost = broadcast.acknowledged > 0
        return fresh, f"no state, though round {broadcast.acknowledged} was counted: residual lost" if lost else ""
    if state.method != name:
        return fresh, f"method changed from {state.method} to {name}: started anew"
    if broadcast.acknowledged > state.round:
        # The server counted a reply made from a later state than this one. Part of this residual went out with it: to
        # send it again would count it twice.
        return (
            fresh,
            f"state of round {state.round} is older than counted round {broadcast.acknowledged}: residual dropped",
        )
    if broadcast.acknowledged == state.round or not state.in_flight:
        return replace(state, in_flight=b""), ""
    if broadcast.method.feedback != "full" or state.compression.residual is None:
        return replace(state, in_flight=b""), f"reply to round {state.round} was not counted"
    residual = state.compression.residual.copy()
    decode(Reply.decode(state.in_flight).blob, layout).add_to(residual, 1.0)
    compression = replace(state.compression, residual=residual)
    return (
        replace(state, compression=compression, in_flight=b""),
        f"reply to round {state.round} was not counted: put back into the residual",
    )
