"""A client as a state machine: broadcast bytes in, reply bytes out, and nothing lost in between.

Its last reply stays in flight until a later broadcast acknowledges it. What was not counted goes back into the
residual. The state is safe in the store before the reply leaves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedsparq.errors import OptionError, WireError
from fedsparq.federate.acknowledge import Resolve, acknowledge
from fedsparq.federate.messages import Broadcast, FullWanted, Reply
from fedsparq.federate.model import Model
from fedsparq.federate.norm_clip import clip_hard, clip_norm
from fedsparq.federate.state import ClientState
from fedsparq.federate.store import Loaded, Store
from fedsparq.layout import Arrays, Buffers, Layout, Vector
from fedsparq.method import Method
from fedsparq.wire import decode, encode


@dataclass(frozen=True)
class Trained:
    """What local training gave: the change of the parameters, and the buffers as they are now."""

    update: Vector
    examples: int
    buffers: Buffers | None = None
    reach: float = 0.0
    """How far it would have moved a weight against a gradient of 1: lr x steps of plain SGD. 0: the task does not
    say; methods that correct gradients by past updates need it."""
    memory: Arrays = field(default_factory=dict)
    """What a task that `remembers` is given again with this client's next training."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the client measured of a model of its own."""


Train = Callable[..., Trained]
"""Trains from a model in a round: called with (model, hook, round). The hook, if there is one, is called on the
gradient of each step."""


@dataclass(frozen=True)
class Answer:
    """A client's answer: a message, or none to a broadcast that is damaged or out of date; and what it has to say."""

    message: bytes | None
    remarks: tuple[str, ...] = ()
    sent: int = 0
    """How many bytes left the client, whether or not they arrive."""
    train_seconds: float = 0.0
    compress_seconds: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Client:
    """One client of a federation. All it remembers is in the store."""

    number: int
    layout: Layout
    train: Train
    store: Store
    resolve: Resolve
    """Makes the method that a broadcast names: `fedsparq.resolver()`, or ``lambda identity: my_method``."""
    seed: int = 0
    remembers: bool = False
    """Whether training has a memory of its own: it is called with memory=what it returned the last time."""

    def answer(self, message: bytes, salt: bytes = b"") -> Answer:
        """Train on a broadcast's model and reply. The same broadcast again gets the same reply again.

        `salt` is for a reply that will not leave this client as it is.
        """
        try:
            broadcast = Broadcast.decode(message)
        except WireError as error:
            return Answer(None, (f"broadcast could not be read: {error}",))
        if broadcast.layout_digest != self.layout.digest:
            raise WireError(
                f"the server's model has digest {broadcast.layout_digest:016x}, "
                f"this client's {self.layout.digest:016x}: both sides must build the same model"
            )
        if broadcast.plan is not None and broadcast.plan.support is not None:
            broadcast.plan.support.check_size(self.layout.size)
        method = self.resolve(broadcast.method)
        if method.traits.plans_rounds and broadcast.plan is None:
            raise WireError(f"the broadcast has no round plan, which {method.label!r} needs")
        loaded = self.store.load(self.number, self.layout)
        remarks = [loaded.remark] if loaded.remark else []
        if loaded.state and loaded.state.method == broadcast.method and not loaded.state.fits(method.init(self.layout)):
            remarks.append(f"state does not fit its method {broadcast.method.name!r}: left aside")
            loaded = Loaded(None)
        if loaded.state and loaded.state.round == broadcast.round and loaded.state.in_flight:
            again = loaded.state.in_flight
            return Answer(again, (*remarks, "broadcast came again: same reply sent again"), len(again))
        if loaded.state and loaded.state.round >= broadcast.round:
            return Answer(None, (*remarks, f"broadcast of round {broadcast.round} is out of date: ignored"))
        model = self._model(broadcast, loaded.state)
        if model is None:
            wanted = FullWanted(broadcast.round).encode()
            return Answer(wanted, (*remarks, "model not at hand: whole model asked for"), len(wanted))
        state, remark = acknowledge(loaded.state, broadcast, method, self.layout, self.resolve, model)
        return self._work(broadcast, method, model, state, (*remarks, remark) if remark else tuple(remarks), salt)

    def _work(
        self,
        broadcast: Broadcast,
        method: Method,
        model: Model,
        state: ClientState,
        remarks: tuple[str, ...],
        salt: bytes,
    ) -> Answer:
        begun = time.perf_counter()
        compression = method.begin(state.compression, broadcast.round)
        start = replace(model, vector=method.start(model.vector, compression))
        more: dict[str, Any] = {"memory": state.memory} if self.remembers else {}
        trained = self.train(start, method.gradient_hook(compression), broadcast.round, **more)
        if method.traits.requires_full_participation and not trained.reach > 0:
            raise OptionError(
                f"{method.label!r} must know how far a client trains: the task's Trained(...) needs reach=lr * steps"
            )
        trained_at = time.perf_counter()
        update, compression = method.end(trained.update, compression)
        rng = np.random.default_rng([self.seed, broadcast.round, self.number, 1])
        payload, compression = method.compress(update, compression.with_plan(broadcast.plan), rng)
        if broadcast.plan is not None and broadcast.plan.clip < math.inf:
            payload, compression = clip_hard(broadcast.plan.clip, payload, compression, method)
        payload, compression, clipped = clip_norm(broadcast.norm_limit, payload, compression, method)
        if clipped:
            remarks = (*remarks, f"update above the norm limit {broadcast.norm_limit:.3g}: a part of it sent")
        blob = encode(replace(payload, buffers=trained.buffers))
        reply = Reply(broadcast.round, broadcast.method.digest, trained.examples, blob, salt).encode()
        held = model if broadcast.hold or method.traits.needs_model_change else None
        after = replace(state, compression=compression, round=broadcast.round, in_flight=reply, model=held)
        self.store.save(self.number, replace(after, reach=trained.reach, memory=trained.memory))
        seconds = trained_at - begun, time.perf_counter() - trained_at
        return Answer(reply, remarks, len(reply), *seconds, trained.metrics)

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
