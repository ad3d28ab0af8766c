"""The server as a state machine: it opens a round, broadcasts, receives bytes that may be anything, closes the round.

Replies reach the aggregator as they come; only a limit relative to the round's median needs them all first. What counts
is decided when the round closes, and told to each client with the next broadcast: only then is the client free to
forget its reply. So the state must be safe before the next round is opened: see checkpoint.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedsparq.aggregate.rounds import check_mean, check_shares
from fedsparq.errors import RunError, WireError
from fedsparq.federate.downlink import Downlink
from fedsparq.federate.events import Event, EventLog
from fedsparq.federate.messages import (
    NOTHING_COUNTED,
    Acknowledgement,
    Broadcast,
    FullWanted,
    decode_answer,
    reply_digest,
)
from fedsparq.federate.model import Model
from fedsparq.federate.validation import (
    Size,
    Validation,
    check_kept_in_step,
    check_sound,
    decode_sent,
    size_of,
    too_large,
)
from fedsparq.layout import Arrays, Layout
from fedsparq.method import Identity, Method
from fedsparq.payload import Payload
from fedsparq.payload.support import RoundPlan
from fedsparq.protocols import Accumulator, ModelAccumulator, SumAccumulator, Update
from fedsparq.wire import decode

Measures = Mapping[str, Callable[[Payload], float]]
"""Numbers to take of every reply that counts, by name."""


@dataclass(frozen=True)
class ServerState:
    """A server between two rounds."""

    model: Model
    optimizer: Arrays = field(default_factory=dict)
    aggregator: Arrays = field(default_factory=dict)
    round: int = 0
    """The last round that was closed."""
    counted: dict[int, Acknowledgement] = field(default_factory=dict)
    """For each client, the last reply that was counted."""
    norm_limit: float = math.inf
    """The largest norm an update could have in the last round."""


@dataclass(frozen=True)
class Verdict:
    """What became of a message: taken, or refused for a reason; `resend` if the client asked for the whole model."""

    taken: bool
    reason: str = ""
    resend: bool = False


@dataclass(frozen=True)
class RoundOutcome:
    """A closed round: the clients of whose replies something counted, and means over all replies that were taken."""

    round: int
    counted: tuple[int, ...]
    events: tuple[Event, ...]
    unlisted: int = 0
    """How many events there were beyond those listed."""
    kept: float = 0.0
    kept_layers: dict[str, float] = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)
    """Which share of each reply that was taken counted."""
    recorded: dict[str, float] = field(default_factory=dict)
    """What the aggregator recorded of the round."""


@dataclass(frozen=True)
class _Sound:
    """A sound reply, as bytes where these are available: what is decoded takes more memory, by far."""

    update: Callable[[], Update]
    digest: int
    size: Size


@dataclass
class _Open:
    """A round under way."""

    number: int
    asked: frozenset[int]
    accumulator: Accumulator
    plan: RoundPlan | None
    kept: dict[str, int] = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)
    recorded: dict[str, float] = field(default_factory=dict)
    """What the aggregator has to say of the round."""
    digests: dict[int, int] = field(default_factory=dict)
    """The digest of each client's reply that was taken."""
    held: dict[int, _Sound] = field(default_factory=dict)
    """Replies that cannot be judged before all are there."""


class Server:
    """The server of one federation, before its first round; `restore` puts it back to a later one."""

    def __init__(
        self,
        layout: Layout,
        method: Method,
        model: Model,
        *,
        validation: Validation | None = None,
        downlink: Downlink | None = None,
        own_methods: Mapping[int, Method] | None = None,
        measures: Measures | None = None,
    ) -> None:
        self.layout = layout
        self.method = method
        self.own_methods = own_methods or {}
        """Methods of clients whose options differ from the others', such as their byte budgets."""
        self.downlink = downlink or Downlink(layout)
        if self.downlink.lattice is not None:
            model = self.downlink.lattice.start(layout, model)
        self.state = ServerState(model, method.optimizer.init(layout), method.aggregator.init(layout))
        self.validation = validation or Validation()
        self._measures = measures or {}
        check_kept_in_step(method, self.validation.acknowledge, self.downlink.compressed)
        self._open: _Open | None = None
        self._events = EventLog()

    def identity_of(self, client: int) -> Identity:
        """The method a client is asked to use."""
        method = self.own_methods.get(client, self.method)
        return method.identity or Identity("", label=method.label)

    def restore(self, state: ServerState, downlink: Downlink) -> None:
        """Go back to an earlier state; a round that was open is forgotten."""
        self.state, self.downlink = state, downlink
        self._open, self._events = None, EventLog()

    def open_round(self, clients: Iterable[int]) -> None:
        """Begin the next round with these clients; a round that was open is forgotten, and none of it counts."""
        if self._open is not None:
            self._events = EventLog()
            self.downlink.squares.clear()
        number = self.state.round + 1
        accumulator = self.method.aggregator.open(self.layout, self.state.aggregator)
        if isinstance(accumulator, ModelAccumulator):
            accumulator.begin(self.state.model.vector, self.state.model.buffers, number)
        plan = self.method.plan(self.layout, self.state.aggregator)
        self._open = _Open(number, frozenset(clients), accumulator, plan)
        self.downlink.prepare(number, self.state.model)

    def broadcast(self, client: int) -> bytes:
        """The message that asks a client for its part in the open round."""
        number, plan = self._current().number, self._current().plan
        base, blobs = self.downlink.parts(client)
        last = self.state.counted.get(client, NOTHING_COUNTED) if self.validation.acknowledge else None
        hold, limit = self.downlink.compressed, self.state.norm_limit
        method, layout = self.identity_of(client), self.layout.digest
        digest = self.downlink.digest
        return Broadcast(number, last, layout, method, base, hold, blobs, limit, plan=plan, digest=digest).encode()

    def receive(self, client: int, message: bytes, seconds: float = 0.0) -> Verdict:
        """Take a client's answer into the open round, or refuse it. What is refused leaves no trace but an event.

        `seconds` is how long the answer took.
        """
        try:
            answer = decode_answer(message)
            self._check_expected(client, answer.round, seconds)
            if isinstance(answer, FullWanted):
                if not self.downlink.forget(client):
                    raise WireError("the whole model is asked for, but has been sent")
                return Verdict(False, "the whole model was asked for", resend=True)
            answer.answers(self.identity_of(client))
            payload = decode_sent(answer.blob, self.layout, self.own_methods.get(client, self.method))
        except WireError as error:
            return self._refuse(client, str(error))
        reread = partial(decode, answer.blob, self.layout)
        return self._take(client, payload, answer.examples, reply_digest(message), reread)

    def receive_payload(
        self,
        client: int,
        payload: Payload,
        examples: int,
        seconds: float = 0.0,
        reread: Callable[[], Payload] | None = None,
    ) -> Verdict:
        """`receive` for an update that a transport has read already, and may be able to read again."""
        try:
            self._check_expected(client, self.state.round + 1, seconds)
        except WireError as error:
            return self._refuse(client, str(error))
        return self._take(client, payload, examples, 0, reread)

    def receive_sum(self, levels: NDArray[np.int64], digests: Mapping[int, int]) -> None:
        """Take the sum of these clients' levels, on the support of the open round's plan, into it."""
        current = self._current()
        accumulator = current.accumulator
        if not isinstance(accumulator, SumAccumulator) or current.plan is None or current.plan.support is None:
            raise RunError(f"{type(self.method.aggregator).__name__} cannot take a sum in place of the replies")
        accumulator.add_sum(levels, sorted(digests))
        current.digests |= digests
        support = current.plan.support.indices(self.layout.size)
        cuts = np.searchsorted(support, self.layout.bounds.astype(np.uint32))
        current.kept = {
            t.name: int(n) * len(digests) for t, n in zip(self.layout.parameters, np.diff(cuts), strict=True)
        }

    def note(self, client: int, reason: str) -> None:
        """Record what happened to a client; between two rounds it is listed with the next one."""
        self._events.add(Event(client, self._open.number if self._open else self.state.round, reason))

    def close_round(self) -> RoundOutcome:
        """Step the model by what was received. With too few replies nothing counts, and the model stays as it is."""
        current = self._current()
        limit = self.state.norm_limit
        if current.held or not self.validation.needs_whole_round:
            bounds = self.validation.bounds([sound.size for sound in current.held.values()])
            limit = bounds.norm
            for client in sorted(current.held):
                self._judge(client, current.held[client], bounds)
        always = self.method.traits.steps_without_replies
        if len(current.digests) < self.validation.min_replies and not always:
            self._make_void(current)
        state, shares = self._stepped(current, always) if current.digests or always else (self.state, {})
        self.state = replace(state, round=current.number, norm_limit=limit)
        events, self._events, self._open = self._events, EventLog(), None
        return _outcome(current, shares, events, self.layout)

    def _check_expected(self, client: int, number: int, seconds: float) -> None:
        if self._open is None:
            raise WireError("no round is open")
        current, deadline = self._open, self.validation.deadline
        if client not in current.asked:
            raise WireError("the client was not asked in this round")
        if number != current.number:
            raise WireError(f"the answer is for round {number}, not {current.number}")
        if deadline is not None and seconds > deadline:
            raise WireError(f"the answer came after the deadline of {deadline:g} s")
        if client in current.digests or client in current.held:
            raise WireError("the client has answered this round already")

    def _take(
        self, client: int, payload: Payload, examples: int, digest: int, reread: Callable[[], Payload] | None
    ) -> Verdict:
        current, buffers = self._current(), self.state.model.buffers
        try:
            if not examples:
                raise WireError("the answer was trained on no example")
            check_sound(payload, buffers)
        except WireError as error:
            return self._refuse(client, str(error))
        self.downlink.holds(client, current.number)
        weight = examples if self.method.traits.weighs_by_examples else 1
        size = size_of(payload, buffers, weight, self.validation)
        if not self.validation.needs_whole_round:
            update = Update(client, payload, examples, weight, reread)
            return self._judge(client, _Sound(lambda: update, digest, size), self.validation.bounds(()))
        again = reread or (lambda: payload)
        current.held[client] = _Sound(lambda: Update(client, again(), examples, weight, reread), digest, size)
        return Verdict(True)

    def _current(self) -> _Open:
        if self._open is None:
            raise RunError("no round is open; call open_round first")
        return self._open

    def _refuse(self, client: int, reason: str) -> Verdict:
        self.note(client, f"refused: {reason}")
        return Verdict(False, reason)

    def _make_void(self, current: _Open) -> None:
        needed = self.validation.min_replies
        self.note(-1, f"the round is void: {len(current.digests)} replies counted, at least {needed} are needed")
        for client in sorted(current.digests):
            self._refuse(client, "the round is void")
        current.digests.clear()

    def _judge(self, client: int, sound: _Sound, bounds: Size) -> Verdict:
        reason = too_large(sound.size, bounds)
        if reason:
            return self._refuse(client, reason)
        current, update = self._current(), sound.update()
        current.accumulator.add(update)
        current.digests[client] = sound.digest
        self.downlink.replied(update.payload)
        for tensor, values in zip(self.layout.parameters, update.payload.values, strict=True):
            current.kept[tensor.name] = current.kept.get(tensor.name, 0) + len(values)
        for name, measure in self._measures.items():
            current.measures[name] = current.measures.get(name, 0) + measure(update.payload)
        return Verdict(True)

    def _stepped(self, current: _Open, always: bool) -> tuple[ServerState, dict[int, float]]:
        """The state after the round, and the shares that counted.

        Clients are told what counted or was let go: the rest is theirs.
        """
        aggregate, state, name = current.accumulator.close(), self.state, type(self.method.aggregator).__name__
        shares = check_shares(name, aggregate.shares, current.digests)
        acknowledged = {client: share + aggregate.let_go.get(client, 0.0) for client, share in shares.items()}
        acknowledged = check_shares(name, acknowledged, current.digests)
        told = {
            client: Acknowledgement(current.number, digest, acknowledged[client])
            for client, digest in current.digests.items()
            if acknowledged[client] > 0
        }
        state = replace(state, counted=state.counted | told)
        current.recorded = dict(aggregate.measures)
        for client in sorted(client for client, share in shares.items() if not share):
            self.note(client, "taken, but the aggregator let nothing of it count")
        if aggregate.mean is None or not (always or any(shares.values())):
            return replace(state, aggregator=aggregate.state), shares
        mean = check_mean(name, aggregate.mean, self.layout.size)
        vector, optimizer = self.method.optimizer.step(state.model.vector, mean, state.optimizer)
        model = Model(np.asarray(vector, np.float32), aggregate.buffers or state.model.buffers)
        return replace(state, model=model, optimizer=optimizer, aggregator=aggregate.state), shares


def _outcome(current: _Open, shares: dict[int, float], events: EventLog, layout: Layout) -> RoundOutcome:
    listed, replies = tuple(events.listed), len(current.digests)
    counted = tuple(sorted(client for client, share in shares.items() if share > 0))
    if not replies:
        return RoundOutcome(current.number, (), listed, events.unlisted)
    layers = {t.name: current.kept[t.name] / (replies * t.size) if t.size else 0.0 for t in layout.parameters}
    kept = sum(current.kept.values()) / (replies * layout.size) if layout.size else 0.0
    measures = {name: total / replies for name, total in current.measures.items()}
    about = counted, listed, events.unlisted, kept, layers, measures, shares, current.recorded
    return RoundOutcome(current.number, *about)
