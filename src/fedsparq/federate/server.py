"""The server as a state machine: it opens a round, broadcasts, receives bytes that may be anything, closes the round.

Replies are added up as they come; only a limit relative to the round's median needs them all first. What counts is
decided when the round closes, and told to each client with the next broadcast: only then is the client free to forget
its reply. So the state must be safe before the next round is opened: see checkpoint.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress.payload import Payload
from fedsparq.compress.pipeline import Method
from fedsparq.errors import RunError, WireError
from fedsparq.federate.downlink import Downlink
from fedsparq.federate.events import EventLog
from fedsparq.federate.messages import (
    NOTHING_COUNTED,
    Broadcast,
    FullWanted,
    Receipt,
    decode_answer,
    method_digest,
    reply_digest,
)
from fedsparq.federate.model import Model
from fedsparq.federate.rules import Event, Rules, Size, check_sound, size_of, too_large
from fedsparq.federate.tally import Sent, Tally
from fedsparq.layout import Layout
from fedsparq.wire.frame import decode


@dataclass(frozen=True)
class ServerState:
    """A server between two rounds."""

    model: Model
    velocity: NDArray[np.float32]
    round: int = 0
    """The last round that was closed."""
    counted: dict[int, Receipt] = field(default_factory=dict)
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
    """A closed round: the clients that counted, and per reply means over them."""

    round: int
    counted: tuple[int, ...]
    events: tuple[Event, ...]
    unlisted: int = 0
    """How many events there were beyond those listed."""
    kept: float = 0.0
    kept_layers: dict[str, float] = field(default_factory=dict)
    paper_bytes: float = 0.0


@dataclass(frozen=True)
class _Update:
    """A sound reply."""

    payload: Payload
    digest: int
    size: Size


@dataclass
class _Open:
    """A round under way."""

    number: int
    asked: frozenset[int]
    tally: Tally
    sent: Sent = field(default_factory=Sent)
    counted: dict[int, int] = field(default_factory=dict)
    """The digest of each client's reply that was added up."""
    held: dict[int, _Update] = field(default_factory=dict)
    """Replies that cannot be judged before all are there."""


class Server:
    """The server of one federation."""

    def __init__(
        self,
        layout: Layout,
        method: Method,
        state: ServerState,
        *,
        rules: Rules | None = None,
        downlink: Downlink | None = None,
        own_methods: Mapping[int, Method] | None = None,
    ) -> None:
        self.layout = layout
        self.method = method
        self.own_methods = own_methods or {}
        """Methods of clients whose options differ from the others', such as their byte budgets."""
        self.state = state
        self.rules = rules or Rules()
        self.downlink = downlink or Downlink(layout)
        self._open: _Open | None = None
        self._events = EventLog()

    @classmethod
    def start(
        cls,
        layout: Layout,
        method: Method,
        model: Model,
        *,
        rules: Rules | None = None,
        downlink: Downlink | None = None,
        own_methods: Mapping[int, Method] | None = None,
    ) -> Server:
        """A server before its first round."""
        state = ServerState(model, np.zeros(layout.size, np.float32))
        return cls(layout, method, state, rules=rules, downlink=downlink, own_methods=own_methods)

    def method_of(self, client: int) -> Method:
        """The method a client is asked to use."""
        return self.own_methods.get(client, self.method)

    def restore(self, state: ServerState, downlink: Downlink) -> None:
        """Go back to an earlier state; a round that was open is forgotten."""
        self.state, self.downlink = state, downlink
        self._open, self._events = None, EventLog()

    def open_round(self, clients: Iterable[int]) -> None:
        """Begin the next round with these clients; a round that was open is forgotten, and none of it counts."""
        if self._open is not None:
            self._events = EventLog()
        number = self.state.round + 1
        self._open = _Open(number, frozenset(clients), Tally(np.zeros(self.layout.size, np.float32)))
        self.downlink.prepare(number, self.state.model)

    def broadcast(self, client: int) -> bytes:
        """The message that asks a client for its part in the open round."""
        return self.request(client).encode()

    def request(self, client: int) -> Broadcast:
        """What `broadcast` says, for a transport that carries the model apart from the rest."""
        number = self._current().number
        base, blobs = self.downlink.parts(client)
        told = self.state.counted.get(client, NOTHING_COUNTED) if self.rules.acknowledge else None
        hold = self.downlink.compressed
        limit = self.state.norm_limit
        return Broadcast(number, told, self.layout.digest, self.method_of(client), base, hold, blobs, limit)

    def receive(self, client: int, message: bytes, seconds: float = 0.0) -> Verdict:
        """Take a client's answer into the open round, or refuse it. What is refused leaves no trace but an event.

        `seconds` is how long the answer took.
        """
        try:
            answer = decode_answer(message)
            if self._open is None:
                raise WireError("no round is open")
            current = self._open
            if client not in current.asked:
                raise WireError("the client was not asked in this round")
            if answer.round != current.number:
                raise WireError(f"the answer is for round {answer.round}, not {current.number}")
            if self.rules.deadline is not None and seconds > self.rules.deadline:
                raise WireError(f"the answer came after the deadline of {self.rules.deadline:g} s")
            if client in current.counted or client in current.held:
                raise WireError("the client has answered this round already")
            if isinstance(answer, FullWanted):
                if not self.downlink.forget(client):
                    raise WireError("the whole model is asked for, but has been sent")
                return Verdict(False, "the whole model was asked for", resend=True)
            if answer.method_digest != method_digest(self.method_of(client)):
                label = self.method_of(client).label
                raise WireError(f"the answer was made by another method, or other options, than {label!r}")
            if not answer.examples:
                raise WireError("the answer was trained on no example")
            payload = decode(answer.blob, self.layout)
            check_sound(payload, self.state.model.exact)
        except WireError as error:
            return self._refuse(client, str(error))
        self.downlink.holds(client, current.number)
        examples = answer.examples if self.method.weighting == "examples" else 1
        size = size_of(payload, self.state.model.exact, examples, self.rules)
        update = _Update(payload, reply_digest(message), size)
        if self.rules.needs_whole_round:
            current.held[client] = update
            return Verdict(True)
        return self._judge(client, update, self.rules.bounds(()))

    def note(self, client: int, reason: str) -> None:
        """Record what happened to a client; between two rounds it is listed with the next one."""
        self._events.add(Event(client, self._open.number if self._open else self.state.round, reason))

    def close_round(self) -> RoundOutcome:
        """Step the model by what was received. With too few replies nothing counts, and the model stays as it is."""
        current = self._current()
        limit = self.state.norm_limit
        if current.held or not self.rules.needs_whole_round:
            bounds = self.rules.bounds([update.size for update in current.held.values()])
            limit = bounds.norm
            for client in sorted(current.held):
                self._judge(client, current.held[client], bounds)
        if len(current.counted) < self.rules.min_replies:
            self._make_void(current)
        state = self._stepped(current) if current.counted else self.state
        receipts = {client: Receipt(current.number, digest) for client, digest in current.counted.items()}
        counted = self.state.counted | receipts
        self.state = replace(state, round=current.number, counted=counted, norm_limit=limit)
        events, self._events, self._open = self._events, EventLog(), None
        return _outcome(current, events, self.layout)

    def _current(self) -> _Open:
        if self._open is None:
            raise RunError("no round is open; call open_round first")
        return self._open

    def _refuse(self, client: int, reason: str) -> Verdict:
        self.note(client, f"refused: {reason}")
        return Verdict(False, reason)

    def _make_void(self, current: _Open) -> None:
        needed = self.rules.min_replies
        self.note(-1, f"the round is void: {len(current.counted)} replies counted, at least {needed} are needed")
        for client in sorted(current.counted):
            self._refuse(client, "the round is void")
        current.counted.clear()

    def _judge(self, client: int, update: _Update, bounds: Size) -> Verdict:
        reason = too_large(update.size, bounds)
        if reason:
            return self._refuse(client, reason)
        current = self._current()
        self._add(client, update.payload, update.size.examples)
        current.counted[client] = update.digest
        current.sent.add(update.payload)
        return Verdict(True)

    def _add(self, client: int, payload: Payload, weight: float) -> None:
        """Take an update into the round's sum."""
        self._current().tally.add(payload, weight)

    def _stepped(self, current: _Open) -> ServerState:
        state, method = self.state, self.method
        momentum, restart = method.server_momentum, method.momentum_restart
        model, velocity = current.tally.step(state.model, state.velocity, momentum, restart)
        return ServerState(model, velocity)


def _outcome(current: _Open, events: EventLog, layout: Layout) -> RoundOutcome:
    listed = tuple(events.listed)
    replies = len(current.counted)
    if not replies:
        return RoundOutcome(current.number, (), listed, events.unlisted)
    sent = current.sent
    layers = {t.name: sent.kept[t.name] / (replies * t.size) if t.size else 0.0 for t in layout.parameters}
    kept = sum(sent.kept.values()) / (replies * layout.size) if layout.size else 0.0
    counted = tuple(sorted(current.counted))
    return RoundOutcome(current.number, counted, listed, events.unlisted, kept, layers, sent.paper_bytes / replies)
