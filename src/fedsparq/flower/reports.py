"""What a strategy says of its rounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from logging import INFO, WARNING

from flwr.supercore import log

from fedsparq.federate.events import Event, EventLog


@dataclass(frozen=True)
class RoundReport:
    """One closed round: bytes as they left either side, without Flower's own; replies, and how many came dense."""

    round: int
    up_bytes: int = 0
    down_bytes: int = 0
    replies: int = 0
    dense: int = 0
    counted: tuple[int, ...] = ()
    """The nodes whose replies went into the model."""
    kept: float = 0.0
    """Which share of the coordinates was sent, on average."""
    events: tuple[Event, ...] = field(default=(), repr=False)
    evaluation_bytes: int = 0
    """What the round's evaluation sent, both ways."""


@dataclass
class Reporter:
    """The round under way, and those before it."""

    rounds: list[RoundReport] = field(default_factory=list)
    current: RoundReport = field(default_factory=lambda: RoundReport(0))
    log: EventLog = field(default_factory=EventLog)
    kept: list[float] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    """Why replies of the whole run did not count, and how often."""
    taken: int = 0
    refused: int = 0
    _said: set[str] = field(default_factory=set)

    def add(self, **counts: int) -> None:
        """Add to the counts of the round under way."""
        more = {name: getattr(self.current, name) + count for name, count in counts.items()}
        self.current = replace(self.current, **more)

    def evaluated(self, count: int) -> None:
        if self.rounds:
            last = self.rounds[-1]
            self.rounds[-1] = replace(last, evaluation_bytes=last.evaluation_bytes + count)

    def note(self, node: int, number: int, reason: str) -> None:
        self.log.add(Event(node, number, reason))

    def refuse(self, node: int, number: int, reason: str) -> None:
        """A reply that cannot count, for a reason."""
        self.refused += 1
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        self.note(node, number, f"refused: {reason}")
        log(WARNING, "fedsparq: the reply of node %d was refused: %s", node, reason)

    def close(self, number: int, counted: tuple[int, ...]) -> RoundReport:
        kept = sum(self.kept) / len(self.kept) if self.kept else 0.0
        report = replace(self.current, round=number, counted=counted, kept=kept, events=tuple(self.log.listed))
        self.rounds.append(report)
        self.current, self.log, self.kept = RoundReport(0), EventLog(), []
        self.taken += report.replies
        dense = f", {report.dense} of them dense" if report.dense else ""
        log(
            INFO,
            f"fedsparq: {report.up_bytes:,} bytes up in {report.replies} replies{dense}; {report.down_bytes:,} down",
        )
        return report

    def once(self, text: str) -> None:
        """Warn of something, once."""
        if text not in self._said:
            self._said.add(text)
            log(WARNING, "fedsparq: %s", text)

    @property
    def commonest(self) -> str:
        """The reason that came most often."""
        return max(self.reasons, key=lambda reason: self.reasons[reason], default="no node answered in time")
