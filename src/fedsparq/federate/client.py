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
from fedsparq.federate.messages import (
    Broadcast,
    FullWanted,
    Receipt,
    Reply,
    describe,
    method_digest,
    method_of,
    reply_digest,
)
from fedsparq.federate.model import Model
from fedsparq.federate.portion import within
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
    """A client's answer: a message, or none to a broadcast that is damaged or out of date; and what it has to say."""

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
        try:
            broadcast = Broadcast.decode(message)
        except WireError as error:
            return Answer(None, (f"broadcast could not be read: {error}",))
        return self.respond(broadcast)

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
        payload, compression, shortened = within(broadcast.norm_limit, payload, compression, broadcast.method)
        if shortened:
            remarks = (*remarks, f"update above the norm limit {broadcast.norm_limit:.3g}: a part of it sent")
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
    told = broadcast.acknowledged
    fresh = ClientState(broadcast.method.init(layout), describe(broadcast.method).decode())
    if told is not None:
        fresh = replace(fresh, acknowledged=told)
    if state is None:
        counted = told is not None and told.round
        return fresh, f"no state, though a reply to round {counted} was counted: residual lost" if counted else ""
    before = state.acknowledged
    if told is None:
        settled, remark = replace(state, in_flight=b""), ""
    elif told == Receipt(state.round, reply_digest(state.in_flight)):
        settled, remark = replace(state, in_flight=b"", acknowledged=told), ""
    elif told == before or told.round < before.round:
        settled, remark = _put_back(state, layout)
        if told != before:
            gone_back = f"the server went back from counted round {before.round} to {told.round}"
            settled, remark = replace(settled, acknowledged=told), "; ".join(filter(None, (gone_back, remark)))
    else:
        # The server counted a reply that was not made from this state. Part of this residual went out with it: to send
        # it again would count it twice.
        unknown = f"state of round {state.round} is an older copy: it knows nothing of the reply to round {told.round}"
        return fresh, f"{unknown} that was counted; residual dropped"
    return (settled, remark) if settled.method == fresh.method else _moved(settled, fresh, broadcast.method, remark)


def _put_back(state: ClientState, layout: Layout) -> tuple[ClientState, str]:
    """The state after a reply that was not counted: with full error feedback, as if it had never been sent."""
    if not state.in_flight:
        return state, ""
    settled, remark = replace(state, in_flight=b""), f"reply to round {state.round} was not counted"
    if state.compression.residual is None or method_of(state.method.encode()).feedback != "full":
        return settled, remark
    residual = state.compression.residual.copy()
    decode(Reply.decode(state.in_flight).blob, layout).add_to(residual, 1.0)
    compression = replace(state.compression, residual=residual)
    return replace(settled, compression=compression), f"{remark}: put back into the residual"


def _moved(state: ClientState, fresh: ClientState, method: Method, remark: str) -> tuple[ClientState, str]:
    """The state under another method: what was not sent yet is kept if that method can send it."""
    residual, text = state.compression.residual, f"method changed from {state.method} to {fresh.method}"
    if residual is not None and method.feedback == "full":
        fresh = replace(fresh, compression=replace(fresh.compression, residual=residual))
        text += ": residual kept"
    elif residual is not None:
        text += ": residual dropped"
    return fresh, "; ".join(filter(None, (remark, text)))
