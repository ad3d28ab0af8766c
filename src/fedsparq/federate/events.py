"""What happened in a round, listed as far as memory allows: a flood of messages must not fill it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from logging import DEBUG, INFO, WARNING, Logger


@dataclass(frozen=True)
class Event:
    """Something that happened to a client's part in a round; client -1: to all of them."""

    client: int
    round: int
    reason: str


MAX_EVENTS = 1000
"""So many events of a round are listed; the rest is counted."""

MAX_PER_CLIENT = 20
"""So many of them may be one client's: none can crowd out the others."""

MAX_REASON = 1000
"""Characters of an event's reason that are kept; clients write some of them."""


@dataclass
class EventLog:
    """The events since the last round was closed."""

    listed: list[Event] = field(default_factory=list)
    unlisted: int = 0
    _per_client: Counter[int] = field(default_factory=Counter)

    def add(self, event: Event) -> None:
        if len(self.listed) < MAX_EVENTS and self._per_client[event.client] < MAX_PER_CLIENT:
            self._per_client[event.client] += 1
            self.listed.append(replace(event, reason=event.reason[:MAX_REASON]))
        else:
            self.unlisted += 1


@dataclass(frozen=True)
class RoundReport:
    """One closed round: bytes as they left either side, without the transport's own; replies, and how many came
    dense.
    """

    round: int
    up_bytes: int = 0
    down_bytes: int = 0
    replies: int = 0
    dense: int = 0
    counted: tuple[int, ...] = ()
    """The clients whose replies went into the model."""
    kept: float = 0.0
    """Which share of the coordinates was sent, on average."""
    events: tuple[Event, ...] = field(default=(), repr=False)
    evaluation_bytes: int = 0
    """What the round's evaluation sent, both ways."""
    plain_bytes: int = 0
    """What the same messages would have taken uncompressed, both ways, evaluation included."""


@dataclass
class Reporter:
    """The round under way, and those before it."""

    logger: Logger
    rounds: list[RoundReport] = field(default_factory=list)
    current: RoundReport = field(default_factory=lambda: RoundReport(0))
    log: EventLog = field(default_factory=EventLog)
    kept: list[float] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    """Why replies of the whole run did not count, and how often."""
    _said: set[str] = field(default_factory=set)

    def add(self, train: bool = True, **counts: int) -> None:
        """Add to the counts of the round under way; bytes of an evaluation belong to the round before it."""
        if train:
            more = {name: getattr(self.current, name) + count for name, count in counts.items()}
            self.current = replace(self.current, **more)
        elif self.rounds:
            last = self.rounds[-1]
            count = counts.get("up_bytes", 0) + counts.get("down_bytes", 0)
            plain = last.plain_bytes + counts.get("plain_bytes", 0)
            self.rounds[-1] = replace(last, evaluation_bytes=last.evaluation_bytes + count, plain_bytes=plain)

    def note(self, client: int, number: int, reason: str) -> None:
        self.log.add(Event(client, number, reason))

    def failed(self, client: int, number: int, reason: str) -> None:
        """Record why a client has no reply that can count."""
        self.note(client, number, reason)
        self._warn("node %d has no reply that can count: %s", client, reason)

    def refuse(self, client: int, number: int, reason: str) -> None:
        """Record a reply that cannot count, for a reason."""
        self.note(client, number, f"refused: {reason}")
        self._warn("the reply of node %d was refused: %s", client, reason)

    def _warn(self, text: str, client: int, reason: str) -> None:
        """Count a reason, and log it on one line: nodes write some of them."""
        self.reasons[reason[:MAX_REASON]] += 1
        self.logger.log(WARNING, f"fedsparq: {text}", client, repr(reason[:MAX_REASON])[1:-1])

    def close(self, number: int, counted: tuple[int, ...]) -> RoundReport:
        kept = sum(self.kept) / len(self.kept) if self.kept else 0.0
        report = replace(self.current, round=number, counted=counted, kept=kept, events=tuple(self.log.listed))
        self.rounds.append(report)
        self.current, self.log, self.kept = RoundReport(0), EventLog(), []
        dense = f", {report.dense} of them dense" if report.dense else ""
        sent = f"{report.up_bytes:,} bytes up in {report.replies} replies{dense}; {report.down_bytes:,} down"
        self.logger.log(DEBUG, "fedsparq: %s", sent)
        return report

    def summarize(self, rounds: Sequence[RoundReport]) -> None:
        """Log what some rounds have sent, and what they would have sent uncompressed."""
        up, down, evaluation, plain = (
            sum(getattr(report, name) for report in rounds)
            for name in ("up_bytes", "down_bytes", "evaluation_bytes", "plain_bytes")
        )
        if total := up + down + evaluation:
            text = "fedsparq: %d replies; %s bytes up, %s down and %s to evaluate; uncompressed %s, %.1f times as many"
            replies = sum(report.replies for report in rounds)
            self.logger.log(INFO, text, replies, f"{up:,}", f"{down:,}", f"{evaluation:,}", f"{plain:,}", plain / total)

    def once(self, text: str) -> None:
        """Warn of something, once."""
        if text not in self._said:
            self._said.add(text)
            self.logger.log(WARNING, "fedsparq: %s", text)

    @property
    def commonest(self) -> str:
        """The reason that came most often."""
        return max(self.reasons, key=self.reasons.__getitem__, default="no node answered in time")
