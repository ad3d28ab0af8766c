"""The server as a state machine: it opens a round, broadcasts, receives bytes that may be anything, closes the round.

Replies are added up as they come, so memory does not grow with the number of clients. What counts is decided when the
round closes, and told to each client with the next broadcast: only then is the client free to forget its reply.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress.payload import Payload
from fedsparq.compress.pipeline import Method
from fedsparq.errors import RunError, WireError
from fedsparq.federate.downlink import Downlink
from fedsparq.federate.messages import Broadcast, FullWanted, decode_answer, method_digest
from fedsparq.federate.model import Model
from fedsparq.federate.rules import ABSURD, Event, Rules, largest_magnitude, norm
from fedsparq.layout import Exact, Layout
from fedsparq.wire.frame import decode

MAX_EVENTS = 1000
"""So many events of a round are listed; the rest is counted: a flood of messages must not fill the memory."""


@dataclass(frozen=True)
class ServerState:
    """A server between two rounds."""

    model: Model
    velocity: NDArray[np.float32]
    round: int = 0
    """The last round that was closed."""
    counted: dict[int, int] = field(default_factory=dict)
    """For each client, the last round its reply was counted in."""


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


@dataclass
class _Open:
    """A round under way."""

    number: int
    asked: frozenset[int]
    total: NDArray[np.float32]
    weight: float = 0.0
    buffers: NDArray[np.float64] | None = None
    counters: NDArray[np.int64] | None = None
    counted: list[int] = field(default_factory=list)
    held: dict[int, tuple[Payload, float]] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    paper_bytes: int = 0
    events: list[Event] = field(default_factory=list)
    unlisted: int = 0


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
    ) -> None:
        self.layout = layout
        self.method = method
        self.state = state
        self.rules = rules or Rules()
        self.downlink = downlink or Downlink(layout)
        self._digest = method_digest(method)
        self._open: _Open | None = None

    @classmethod
    def start(
        cls,
        layout: Layout,
        method: Method,
        model: Model,
        *,
        rules: Rules | None = None,
        downlink: Downlink | None = None,
    ) -> Server:
        """A server before its first round."""
        state = ServerState(model, np.zeros(layout.size, np.float32))
        return cls(layout, method, state, rules=rules, downlink=downlink)

    def open_round(self, clients: Iterable[int]) -> None:
        """Begin the next round with these clients; a round that was open is forgotten, and none of it counts."""
        number = self.state.round + 1
        self._open = _Open(number, frozenset(clients), np.zeros(self.layout.size, np.float32))
        self.downlink.prepare(number, self.state.model)

    def broadcast(self, client: int) -> bytes:
        """The message that asks a client for its part in the open round."""
        return self.request(client).encode()

    def request(self, client: int) -> Broadcast:
        """What `broadcast` says, for a transport that carries the model apart from the rest."""
        number = self._current().number
        base, blobs = self.downlink.parts(client)
        acknowledged = self.state.counted.get(client, 0)
        hold = self.downlink.compressed
        return Broadcast(number, acknowledged, self.layout.digest, self.method, base, hold, blobs)

    def receive(self, client: int, message: bytes) -> Verdict:
        """Take a client's answer into the open round, or refuse it. What is refused leaves no trace but an event."""
        current = self._current()
        try:
            answer = decode_answer(message)
            if client not in current.asked:
                raise WireError("the client was not asked in this round")
            if answer.round != current.number:
                raise WireError(f"the answer is for round {answer.round}, not {current.number}")
            if isinstance(answer, FullWanted):
                self.downlink.forget(client)
                return Verdict(False, "the whole model was asked for", resend=True)
            if client in current.counted or client in current.held:
                raise WireError("the client has answered this round already")
            if answer.method_digest != self._digest:
                raise WireError(f"the answer was made by another method, or other options, than {self.method.label!r}")
            payload = self._sound(decode(answer.blob, self.layout))
            if not answer.examples:
                raise WireError("the answer was trained on no example")
        except WireError as error:
            return self._refuse(client, str(error))
        self.downlink.holds(client, current.number)
        weight = float(answer.examples) if self.method.weighting == "examples" else 1.0
        if self.rules.needs_whole_round:
            current.held[client] = payload, weight
            return Verdict(True)
        return self._judge(client, payload, weight, self.rules.norm_bound(()))

    def note(self, client: int, reason: str) -> None:
        """Record what happened to a client in the open round."""
        current = self._current()
        if len(current.events) < MAX_EVENTS:
            current.events.append(Event(client, current.number, reason))
        else:
            current.unlisted += 1

    def close_round(self) -> RoundOutcome:
        """Step the model by what was received. With too few replies nothing counts, and the model stays as it is."""
        current = self._current()
        if current.held:
            bound = self.rules.norm_bound([norm(payload) for payload, _ in current.held.values()])
            for client in sorted(current.held):
                self._judge(client, *current.held[client], bound)
        enough = len(current.counted) >= self.rules.min_replies
        if not enough:
            few = f"{len(current.counted)} replies counted, {self.rules.min_replies} are needed: the round is void"
            for client in sorted(current.asked):
                self.note(client, few)
        told = (current.counted if enough else ()) if self.rules.acknowledge else current.asked
        counted = self.state.counted | dict.fromkeys(told, current.number)
        self.state = replace(self._stepped(current) if enough else self.state, round=current.number, counted=counted)
        self._open = None
        return _outcome(current, enough, self.layout)

    def _current(self) -> _Open:
        if self._open is None:
            raise RunError("no round is open; call open_round first")
        return self._open

    def _refuse(self, client: int, reason: str) -> Verdict:
        self.note(client, f"refused: {reason}")
        return Verdict(False, reason)

    def _sound(self, payload: Payload) -> Payload:
        if largest_magnitude(payload) > ABSURD:
            raise WireError(f"a value is above {ABSURD:,.0f}: no parameter moves so far in one round")
        if self.layout.buffers or self.layout.counters:
            if payload.exact is None:
                raise WireError("the statistics and counters of the model are missing")
            if np.abs(payload.exact.buffers).max(initial=0) > ABSURD:
                raise WireError(f"a statistic is above {ABSURD:,.0f}")
        return payload

    def _judge(self, client: int, payload: Payload, weight: float, bound: float) -> Verdict:
        size = norm(payload) if np.isfinite(bound) else 0.0
        if size > bound:
            return self._refuse(client, f"the update's norm {size:.3g} is above the limit {bound:.3g}")
        self._count(client, payload, weight)
        return Verdict(True)

    def _count(self, client: int, payload: Payload, weight: float) -> None:
        current = self._current()
        self._add(client, payload, weight)
        current.counted.append(client)
        current.paper_bytes += payload.paper_bytes
        for tensor, values in zip(self.layout.parameters, payload.values, strict=True):
            current.kept[tensor.name] = current.kept.get(tensor.name, 0) + len(values)
        if payload.exact is not None:
            current.paper_bytes += payload.exact.buffers.nbytes + payload.exact.counters.nbytes

    def _add(self, client: int, payload: Payload, weight: float) -> None:
        """Take an update into the round's sum."""
        current = self._current()
        payload.add_to(current.total, weight)
        current.weight += weight
        if payload.exact is not None:
            scaled = weight * payload.exact.buffers.astype(np.float64)
            current.buffers = scaled if current.buffers is None else current.buffers + scaled
            counters = payload.exact.counters
            current.counters = counters if current.counters is None else np.maximum(current.counters, counters)

    def _stepped(self, current: _Open) -> ServerState:
        mean = current.total / np.float32(current.weight)
        velocity = np.float32(self.method.server_momentum) * self.state.velocity + mean
        exact = self.state.model.exact
        if current.buffers is not None and current.counters is not None:
            exact = Exact((current.buffers / current.weight).astype(np.float32), current.counters)
        return ServerState(Model(self.state.model.vector + velocity, exact), velocity)


def _outcome(current: _Open, enough: bool, layout: Layout) -> RoundOutcome:
    events = tuple(current.events)
    if not enough:
        return RoundOutcome(current.number, (), events, current.unlisted)
    replies = len(current.counted)
    layers = {t.name: current.kept[t.name] / (replies * t.size) if t.size else 0.0 for t in layout.parameters}
    kept = sum(current.kept.values()) / (replies * layout.size) if layout.size else 0.0
    paper = current.paper_bytes / replies
    counted = tuple(sorted(current.counted))
    return RoundOutcome(current.number, counted, events, current.unlisted, kept, layers, paper)
