"""A client as a state machine: broadcast in, reply out, and nothing lost in between.

A round is `open`, then training, then `finish`. The last reply stays in flight until a later broadcast acknowledges it.
What was not counted goes back into the residual. The state is safe in the store before the reply leaves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xxhash

from fedsparq.errors import OptionError, WireError
from fedsparq.federate.acknowledge import Resolve, acknowledge
from fedsparq.federate.clip import clip_exact, clip_hard, clip_norm
from fedsparq.federate.exact import Beside, NamedModel, Ties, model_digest, span_of
from fedsparq.federate.messages import Broadcast, FullWanted, Reply
from fedsparq.federate.model import Model
from fedsparq.federate.serialized import Record, array_digest, same
from fedsparq.federate.state import ClientState, HeldModel
from fedsparq.federate.store import Store
from fedsparq.layout import Arrays, Buffers, Layout, Vector
from fedsparq.method import Method
from fedsparq.protocols import State, hooks_of
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
    exact: Record = field(default_factory=dict)
    """The arrays that travel exactly, as they are now, where the model has named arrays."""
    ties: Ties = ()
    clip: float = math.inf
    """How long the reply may be, parameters and exact floats together."""
    extra: bytes = b""
    """What a transport sends beside the reply, to be kept with it."""


TrainFunction = Callable[..., Trained]
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
class Opened:
    """A broadcast that was read, and what is to be done: one of the classes below."""

    broadcast: Broadcast
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Train(Opened):
    """Train from this model, then call `finish`."""

    method: Method = field(kw_only=True)
    named: NamedModel = field(kw_only=True)
    """Where training starts."""
    state: ClientState = field(kw_only=True)
    begun: State = field(kw_only=True)
    """The compression state at the start of the round."""


@dataclass(frozen=True)
class Evaluate(Opened):
    """Evaluate this model."""

    named: NamedModel = field(kw_only=True)


@dataclass(frozen=True)
class Resend(Opened):
    """Send this without training: the reply to the same broadcast, or a request for the whole model."""

    reply: bytes = field(kw_only=True)
    extra: bytes = b""
    """What the transport sent beside that reply."""


@dataclass(frozen=True)
class Ignore(Opened):
    """The broadcast is damaged or out of date."""

    answered: int = 0
    """The round that was answered already, where it is out of date."""


@dataclass(frozen=True)
class Client:
    """One client of a federation. All it remembers is in the store."""

    number: int
    layout: Layout | None
    """None: broadcasts or their transport name the model's arrays."""
    train: TrainFunction | None
    store: Store
    resolve: Resolve
    """Makes the method that a broadcast names: `fedsparq.resolver()`, or ``lambda identity: my_method``."""
    seed: int = 0
    remembers: bool = False
    """Whether training has a memory of its own: it is called with memory=what it returned the last time."""
    error_feedback: bool = True
    """Whether what is not sent is kept; not where noise of the client's own would pile up in it."""

    def answer(self, message: bytes, salt: bytes = b"") -> Answer:
        """Train on a broadcast's model and reply. The same broadcast again gets the same reply again.

        `salt` is for a reply that will not leave this client as it is.
        """
        try:
            broadcast = Broadcast.decode(message)
        except WireError as error:
            return Answer(None, (f"broadcast could not be read: {error}",))
        opened = self.open(broadcast)
        if isinstance(opened, Resend):
            return Answer(opened.reply, opened.remarks, len(opened.reply))
        if not isinstance(opened, Train) or self.train is None:
            return Answer(None, opened.remarks)
        begun = time.perf_counter()
        more: dict[str, Any] = {"memory": opened.state.memory} if self.remembers else {}
        start = Model(opened.named.vector, opened.named.buffers)
        trained = self.train(start, opened.method.gradient_hook(opened.begun), opened.broadcast.round, **more)
        trained_at = time.perf_counter()
        state, remarks = self.finish(opened, trained, salt)
        seconds = trained_at - begun, time.perf_counter() - trained_at
        return Answer(state.in_flight, remarks, len(state.in_flight), *seconds, trained.metrics)

    def open(self, broadcast: Broadcast, given: NamedModel | None = None) -> Opened:
        """Read a broadcast: settle earlier replies, and build the model. `given` is the model where it came plain."""
        held = None if given is not None or (broadcast.blobs and not broadcast.base) else self._held()
        layout = self.layout or _layout(broadcast, given, held)
        if layout is None:
            return self._need_model(broadcast)
        if broadcast.layout_digest != layout.digest:
            raise WireError(
                f"the server's model has digest {broadcast.layout_digest:016x}, "
                f"this client's {layout.digest:016x}: both sides must build the same model"
            )
        if broadcast.plan is not None and broadcast.plan.support is not None:
            broadcast.plan.support.check_size(layout.size)
        remarks: tuple[str, ...] = ()
        method, state, renumbered = self.resolve(broadcast.method), None, None
        if method.traits.plans_rounds and broadcast.plan is None and not broadcast.evaluate:
            raise WireError(f"the broadcast has no round plan, which {method.label!r} needs")
        if not self.error_feedback:
            method = replace(method, feedback="off").named(method.identity)
        if not broadcast.evaluate:
            state, remarks, renumbered = self._state(broadcast, method, layout)
            if state and state.round == broadcast.round and state.in_flight:
                remarks = (*remarks, "broadcast came again: same reply sent again")
                return Resend(broadcast, remarks, reply=state.in_flight, extra=state.extra)
            if state and state.round >= broadcast.round:
                late = f"broadcast of round {broadcast.round} is out of date: ignored"
                return Ignore(broadcast, (*remarks, late), state.round)
        try:
            named = given if given is not None else _built(broadcast, layout, held)
        except WireError as error:
            return Ignore(broadcast, (*remarks, f"broadcast could not be read: {error}"))
        if named is None:
            return self._need_model(broadcast, *remarks)
        if broadcast.evaluate:
            self._hold(broadcast, named, held)
            return Evaluate(broadcast, named=named)
        if renumbered:  # files are named by their rounds: the newest is not to be taken for an older one
            self.store.save(self.number, renumbered)
        model = Model(named.vector, named.buffers) if method.traits.needs_model_change else None
        state, remark = acknowledge(state, broadcast, method, layout, self.resolve, model)
        remarks = (*remarks, remark) if remark else remarks
        self._hold(broadcast, named, held)
        state, begun = replace(state, model=model), method.begin(state.compression, broadcast.round)
        if any("start" in hooks_of(rule) for rule in method.rules):
            named = replace(named, record=None, built=method.start(named.vector, begun))
        return Train(broadcast, remarks, method=method, named=named.once(), state=state, begun=begun)

    def finish(self, opened: Train, trained: Trained, salt: bytes = b"") -> tuple[ClientState, tuple[str, ...]]:
        """Compress what training changed, and save. The state's reply `in_flight` is now to be sent."""
        broadcast, method, named, remarks = opened.broadcast, opened.method, opened.named, opened.remarks
        if method.traits.requires_full_participation and not trained.reach > 0:
            raise OptionError(
                f"{method.label!r} must know how far a client trains: the task's Trained(...) needs reach=lr * steps"
            )
        update, compression = method.end(trained.update, opened.begun)
        rng = np.random.default_rng([self.seed, broadcast.round, self.number, 1])
        payload, compression = method.compress(update, compression.with_plan(broadcast.plan), rng)
        if broadcast.plan is not None and broadcast.plan.clip < math.inf:
            payload, compression = clip_hard(broadcast.plan.clip, payload, compression, method)
        payload, compression, parted = clip_norm(broadcast.norm_limit, payload, compression, method)
        if parted:
            remarks = (*remarks, f"update above the norm limit {broadcast.norm_limit:.3g}: a part of it sent")
        payload, compression, exact = clip_exact(trained.clip, payload, compression, named.exact, trained.exact)
        beside = Beside({n: a for n, a in exact.items() if not same(a, named.exact[n])}, trained.ties)
        blob = encode(payload if trained.buffers is None else replace(payload, buffers=trained.buffers))
        reply = Reply(broadcast.round, broadcast.method.digest, trained.examples, blob, salt, beside).encode()
        after = replace(opened.state, compression=compression, round=broadcast.round, in_flight=reply)
        after = replace(
            after, numbering=broadcast.numbering, extra=trained.extra, reach=trained.reach, memory=trained.memory
        )
        self.store.save(self.number, after)
        return after, remarks

    def _state(
        self, broadcast: Broadcast, method: Method, layout: Layout
    ) -> tuple[ClientState | None, tuple[str, ...], ClientState | None]:
        """The state to go on from, remarks, and what is to be saved first: the state under other numbers of rounds."""
        loaded, renumbered = self.store.load(self.number, layout), None
        state, remarks = loaded.state, (loaded.remark,) if loaded.remark else ()
        if state and state.numbering != broadcast.numbering:
            state = renumbered = replace(state, round=0, numbering=broadcast.numbering)
        if state and not self.error_feedback and state.compression.residual is not None:
            remarks = (*remarks, "without error feedback: residual dropped")
            state = replace(state, compression=replace(state.compression, feedback={}), in_flight=b"", waiting=())
        if state and state.method == broadcast.method and not state.fits(method.init(layout)):
            return None, (*remarks, f"state does not fit its method {broadcast.method.name!r}: left aside"), renumbered
        return state, remarks, renumbered

    def _held(self) -> HeldModel | None:
        return self.store.load_held(self.number, self.layout or Layout(()))

    def _hold(self, broadcast: Broadcast, named: NamedModel, held: HeldModel | None) -> None:
        if broadcast.hold and (held is None or held.version != broadcast.model_version):
            changes = broadcast.blobs if broadcast.base else ()
            self.store.save_held(self.number, HeldModel(broadcast.model_version, named, broadcast.base, changes))

    def _need_model(self, broadcast: Broadcast, *remarks: str) -> Resend:
        remark = "model not at hand: whole model asked for"
        return Resend(broadcast, (*remarks, remark), reply=FullWanted(broadcast.round).encode())


def _layout(broadcast: Broadcast, given: NamedModel | None, held: HeldModel | None) -> Layout | None:
    """The layout of a model that has named arrays, wherever the names are."""
    if given is not None:
        return given.layout
    if broadcast.beside.spec is not None:
        return broadcast.beside.spec.layout
    return held.model.layout if held is not None else None


def _built(broadcast: Broadcast, layout: Layout, held: HeldModel | None) -> NamedModel | None:
    """Return the broadcast's model: sent in full, or made from the one held; None if that cannot be."""
    beside = broadcast.beside
    if broadcast.blobs and not broadcast.base:
        model = _sum(broadcast, layout) if broadcast.hold else Model.decode(broadcast.blobs[0], layout)
        if beside.spec is not None and (missing := {*beside.spec.exact} - {*beside.arrays}):
            raise WireError(f"the whole model lacks its array {min(missing)!r}")
        exact, spec = dict(beside.arrays), beside.spec
    elif held is None or held.model.layout.digest != layout.digest:
        return None
    else:
        changed = _changed(broadcast, layout, held)
        if changed is None:
            return None
        model, exact, spec = changed, {**held.model.exact, **beside.arrays}, held.model.spec
    for name, other in beside.ties if broadcast.blobs else ():
        model.vector[span_of(layout, name)] = model.vector[span_of(layout, other)]
    if broadcast.digest:
        digests = {name: array_digest(array) for name, array in exact.items()}
        if model_digest(xxhash.xxh3_64_intdigest(model.vector.data), digests) != broadcast.digest:
            return None
    return NamedModel(layout, spec, exact, built=model.vector, buffers=model.buffers)


def _sum(broadcast: Broadcast, layout: Layout) -> Model:
    model = Model(np.zeros(layout.size, np.float32))
    for blob in broadcast.blobs:
        model = model.plus(decode(blob, layout))
    return model


def _changed(broadcast: Broadcast, layout: Layout, held: HeldModel) -> Model | None:
    """Return the held model with the broadcast's change; None where the held one is neither the version that the change
    starts from nor came from it. A change that the server does not know of is taken back: sums are exact."""
    model, newest = Model(held.model.vector, held.model.buffers), broadcast.model_version
    if held.version == newest:
        return model
    if held.version != broadcast.base:
        if not held.base or held.base != broadcast.base:
            return None
        try:
            for blob in held.changes:
                model = model.plus(decode(blob, layout), -1.0)
        except WireError:  # the client's own file is damaged
            return None
    for blob in broadcast.blobs:
        model = model.plus(decode(blob, layout))
    return model
