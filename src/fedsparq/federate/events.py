"""What happened in a round, listed as far as memory allows: a flood of messages must not fill it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


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


@dataclass
class EventLog:
    """The events since the last round was closed."""

    listed: list[Event] = field(default_factory=list)
    unlisted: int = 0
    _per_client: Counter[int] = field(default_factory=Counter)

    def add(self, event: Event) -> None:
        if len(self.listed) < MAX_EVENTS and self._per_client[event.client] < MAX_PER_CLIENT:
            self._per_client[event.client] += 1
            self.listed.append(event)
        else:
            self.unlisted += 1
