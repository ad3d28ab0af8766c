"""What a server knows of one node and one kind of model: which replies counted, and which may still."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

from flwr.app import Message

from fedsparq.federate.messages import NOTHING_COUNTED, Acknowledgement
from fedsparq.flower.stream import Base

MOST_OPEN = 16
"""So many rounds of one node may be undecided; beyond, the oldest is given up, and the node puts its reply back."""


@dataclass(eq=False)
class Sent:
    """A message on its way, and what its node was given with it."""

    number: int
    node: int
    base: Base
    message: Message
    train: bool
    named: frozenset[tuple[int, int]] = frozenset()
    """The replies that the message said had counted."""
    version: int = 0
    """The version of the public model that the node holds once it has answered."""
    digest: int = 0
    """Of the reply; 0: there is none yet, or it came plain."""
    answered: bool = False
    at: float = field(default_factory=time.monotonic)


@dataclass
class Channel:
    """The acknowledgements of one node. Sets, as several rounds may be in flight."""

    last: Acknowledgement = NOTHING_COUNTED
    """The newest round that counted: always named, so that a state that is an older copy shows."""
    unconfirmed: list[Acknowledgement] = field(default_factory=list)
    """Counted replies that the node may not have heard of yet."""
    open: dict[int, Sent] = field(default_factory=dict)
    """Rounds whose replies may still count."""
    numbering: int = 0
    """Which numbering of rounds the node is told."""

    def renumber(self) -> None:
        """The node has reached a later round than the one it was told, as after the server went back to a backup."""
        self.numbering = secrets.randbits(63)

    def begin(self, sent: Sent) -> None:
        self.open[sent.number] = sent
        while len(self.open) > MOST_OPEN:
            del self.open[min(self.open)]

    @property
    def also_counted(self) -> tuple[Acknowledgement, ...]:
        return tuple(each for each in self.unconfirmed if each.reply != self.last.reply)

    def pending(self, number: int) -> tuple[int, ...]:
        return tuple(sorted(other for other in self.open if other != number))

    def confirm(self, sent: Sent) -> None:
        """The node has answered a message: what that message named is known to it."""
        self.unconfirmed = [each for each in self.unconfirmed if each.reply not in sent.named]

    def acknowledge(self, sent: Sent, share: float) -> bool:
        """The reply counted by this share, or not at all; False if it was given up before."""
        if self.open.get(sent.number) is not sent:
            return False
        del self.open[sent.number]
        if share > 0 and sent.digest:
            counted = Acknowledgement(sent.number, sent.digest, share)
            self.unconfirmed.append(counted)
            if counted.round >= self.last.round:
                self.last = counted
        return True
