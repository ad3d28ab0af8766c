"""What a server knows of its clients: who was sent what, what counted, and who holds which model.

Whoever aggregates, and however messages travel: the ledger makes the frames, reads the answers, and is told what
counted. Several requests to one client may be open at a time. It is used by one thread.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import xxhash

from fedsparq.errors import WireError
from fedsparq.federate.downlink import Lattice
from fedsparq.federate.exact import NOTHING_BESIDE, Beside, NamedModel
from fedsparq.federate.messages import (
    NOTHING_COUNTED,
    Acknowledgement,
    Broadcast,
    FullWanted,
    Seen,
    check_federation,
    decode_answer,
    reply_digest,
)
from fedsparq.federate.public import PublicModel
from fedsparq.federate.state import acknowledgement_of, counted_number
from fedsparq.federate.validation import decode_sent
from fedsparq.layout import Arrays, part_of
from fedsparq.method import Identity, Method
from fedsparq.payload import Payload
from fedsparq.wire import decode

MAX_OPEN = 16
"""Undecided rounds of one client; beyond, the oldest is given up, and the client puts its reply back."""


@dataclass(eq=False)
class Ticket:
    """A request to one client, and what it was given with it."""

    client: int
    number: int
    model: NamedModel
    """As the server made it. Answers are read against it."""
    train: bool = True
    named: frozenset[tuple[int, int]] = frozenset()
    """The replies that the request said had counted."""
    version: int = 0
    """The version of the public model that the client holds once it has answered."""
    digest: int = 0
    """Of the reply; 0: there is none yet, or it came plain."""
    sent_at: float = field(default_factory=time.monotonic)
    carries_model: bool = False


@dataclass
class Account:
    """The acknowledgements of one client and one kind of model. Sets, as several rounds may be in flight."""

    numbering: int = 0
    """Which numbering of rounds the client is told."""
    last: Acknowledgement = NOTHING_COUNTED
    """The newest round that counted: always named, so that a state that is an older copy shows."""
    unconfirmed: list[Acknowledgement] = field(default_factory=list)
    """Counted replies that the client may not have heard of yet."""
    open: dict[int, Ticket] = field(default_factory=dict)
    """Rounds whose replies may still count."""

    @property
    def also_counted(self) -> tuple[Acknowledgement, ...]:
        return tuple(each for each in self.unconfirmed if each.reply != self.last.reply)

    def begin(self, ticket: Ticket) -> None:
        self.open[ticket.number] = ticket
        while len(self.open) > MAX_OPEN:
            del self.open[min(self.open)]
        ticket.named = frozenset(each.reply for each in (self.last, *self.unconfirmed))

    def settle(self, ticket: Ticket, share: float) -> bool:
        if self.open.get(ticket.number) is not ticket:
            return False
        del self.open[ticket.number]
        if share > 0 and ticket.digest:
            counted = Acknowledgement(ticket.number, ticket.digest, share)
            self.unconfirmed = [*self.unconfirmed, counted][-MAX_OPEN:]
            if counted.round >= self.last.round:
                self.last = counted
        return True


class Received(NamedTuple):
    """A reply that was read: an update, and the arrays that travel exactly."""

    payload: Payload
    beside: Beside
    again: Callable[[], Payload]
    """Decodes the payload again: as bytes it takes less memory."""


class Ledger:
    """Everything that a server must remember of its clients."""

    def __init__(self, method: Method, downlink: Lattice | None = None, federation: str = "") -> None:
        if federation:
            check_federation(federation)
        self.method, self.downlink, self.federation = method, downlink, federation
        named = xxhash.xxh3_64_intdigest(federation.encode()) & (2**63 - 1)
        self.session = named if federation else secrets.randbits(63)
        self.numbering = secrets.randbits(63)
        """Which numbering of rounds this is: clients may remember rounds of other runs by the same numbers."""
        self.number = 0
        """The last round that requests were made for."""
        self.accounts: dict[tuple[int, int], Account] = {}
        self.publics: dict[int, PublicModel] = {}
        self.codec: dict[tuple[int, bool], bool] = {}
        """Which clients have shown that they can read frames, or cannot; each with whether that was in training."""
        self.norm_limit = math.inf
        self.slowest = 0.0
        """How long the slowest reply of the last rounds took."""
        self.restored: frozenset[int] = frozenset()
        """The clients that a checkpoint knew."""

    def publish(self, models: Iterable[NamedModel]) -> PublicModel | None:
        """Make the public model follow the server's; None without a downlink, or where clients have models of their
        own.
        """
        first, *others = models
        if self.downlink is None or any(other is not first and other.digest != first.digest for other in others):
            return None
        public = self.publics.setdefault(first.named_spec.digest, PublicModel(first.named_spec, self.downlink))
        public.publish(first)
        return public

    def frame(self, ticket: Ticket, public: PublicModel | None) -> Broadcast:
        """The request to a client. It carries no model where the transport has to (`plain`), or where the client has
        not shown yet that it can read one."""
        account, layout = self._account(ticket), ticket.model.layout.digest
        number = ticket.number if ticket.train else max(ticket.number, account.last.round + 1, 1)
        sets: tuple[tuple[Acknowledgement, ...], tuple[int, ...]] = ((), ())
        if ticket.train:
            account.begin(ticket)
            sets = account.also_counted, tuple(sorted(other for other in account.open if other != ticket.number))
        base, version, digest, beside = 0, 0, 0, NOTHING_BESIDE
        blobs: tuple[bytes, ...] = ()
        if public is not None:
            version, digest = public.version, public.digest
            reads = self.codec.get((ticket.client, ticket.train))
            if reads or (reads is None and public.is_short):
                base, blobs, beside = public.parts(ticket.client)
                ticket.carries_model = True
        ticket.version = version
        return Broadcast(
            *(number, account.last, layout, self.method.identity or Identity(""), base, public is not None, blobs),
            *(self.norm_limit if ticket.train else math.inf, *sets),
            version=version,
            digest=digest,
            beside=beside,
            evaluate=not ticket.train,
            plain=public is None,
            session=self.session,
            federation=self.federation,
            numbering=account.numbering,
        )

    def receive(self, ticket: Ticket, message: bytes) -> Received | None:
        """Read an answer, or raise WireError; None where the client asks for the whole model."""
        model = ticket.model
        answer = decode_answer(message, Beside.limit(model.exact.values()))
        if isinstance(answer, FullWanted):
            public = self.publics.get(model.named_spec.digest)
            held = public is not None and ticket.client in public.downlink.held
            if public is None or (ticket.carries_model and not held):
                raise WireError("the whole model is asked for, but has been sent")
            if ticket.carries_model:
                public.downlink.forget(ticket.client)
            self.codec[ticket.client, ticket.train] = True
            return None
        if answer.round != ticket.number:
            raise WireError(f"the answer is for round {answer.round}, not {ticket.number}")
        answer.answers(self.method.identity or Identity(""))
        payload = decode_sent(answer.blob, model.layout, self.method)
        model.check_beside(answer.beside.arrays, answer.beside.ties)
        ticket.digest = reply_digest(message)
        self._shown(ticket)
        account = self._account(ticket)
        account.unconfirmed = [each for each in account.unconfirmed if each.reply not in ticket.named]
        public = self.publics.get(model.named_spec.digest)
        if public is not None:
            public.downlink.replied(payload)
            public.reported = answer.beside.ties or public.reported
        return Received(payload, answer.beside, partial(decode, answer.blob, model.layout))

    def evaluated(self, ticket: Ticket, proof: bytes) -> None:
        """Read what came beside an evaluation: which version the client holds."""
        if Seen.decode(proof).version == ticket.version:
            self._shown(ticket)

    def forget(self, ticket: Ticket) -> None:
        """The client answered without a frame: it holds no public model."""
        public = self.publics.get(ticket.model.named_spec.digest)
        if public is not None:
            public.downlink.forget(ticket.client)

    def answered(self, ticket: Ticket) -> None:
        """An answer to a request is complete."""
        if ticket.train:
            self.slowest = max(0.9 * self.slowest, time.monotonic() - ticket.sent_at)

    def settle(self, ticket: Ticket, share: float) -> bool:
        """Say which share of a reply counted; False if it was given up before, and must not count."""
        return ticket.train and self._account(ticket).settle(ticket, share)

    def is_open(self, ticket: Ticket) -> bool:
        """Whether the reply to a request may still count."""
        return self._account(ticket).open.get(ticket.number) is ticket

    def renumber(self, ticket: Ticket) -> None:
        """The client has reached a later round than the one it was told, as after the server went back to a backup."""
        if ticket.train:
            self._account(ticket).numbering = secrets.randbits(63)

    def _account(self, ticket: Ticket) -> Account:
        return self.accounts.setdefault((ticket.client, ticket.model.layout.digest), Account(self.numbering))

    def _shown(self, ticket: Ticket) -> None:
        """The client reads frames, and holds what it was sent."""
        self.codec[ticket.client, ticket.train] = True
        public = self.publics.get(ticket.model.named_spec.digest)
        if public is not None and ticket.version:
            public.downlink.holds(ticket.client, ticket.version)

    def save(self) -> tuple[dict[str, Any], Arrays]:
        """Everything that a new server process needs, as facts for JSON and arrays."""
        accounts = [
            [client, layout, each.numbering, _listed(each.last), [_listed(one) for one in each.unconfirmed]]
            for (client, layout), each in self.accounts.items()
        ]
        publics, arrays = [], dict[str, Any]()
        for number, public in enumerate(self.publics.values()):
            facts, own = public.save()
            publics.append(facts)
            arrays |= {f"{number}.{name}": array for name, array in own.items()}
        codec = [[client, train, reads] for (client, train), reads in self.codec.items()]
        about = {"number": self.number, "numbering": self.numbering, "slowest": self.slowest, "codec": codec}
        return about | {"accounts": accounts, "publics": publics}, arrays

    def load(self, facts: dict[str, Any], arrays: Arrays) -> None:
        """Undo `save`."""
        self.number, self.numbering, self.slowest = (facts[name] for name in ("number", "numbering", "slowest"))
        self.codec = {(client, bool(train)): bool(reads) for client, train, reads in facts["codec"]}
        self.accounts = {
            (client, layout): Account(
                numbering, _acknowledged(last), [acknowledgement_of(each) for each in unconfirmed]
            )
            for client, layout, numbering, last, unconfirmed in facts["accounts"]
        }
        numberings = [self.numbering, *(each.numbering for each in self.accounts.values())]
        counted_number(self.number)
        if not all(type(each) is int and 0 <= each < 2**63 for each in numberings):
            raise ValueError("its rounds have no numbers")
        if not 0 <= self.slowest < math.inf:
            raise ValueError(f"a reply of {self.slowest} seconds")
        self.restored = frozenset(client for client, _ in self.accounts)
        self.publics = {}
        for number, each in enumerate(facts["publics"] if self.downlink is not None else ()):
            assert self.downlink is not None
            public = PublicModel.load(self.downlink, each, part_of(str(number), arrays))
            self.publics[public.spec.digest] = public


def _acknowledged(entry: Any) -> Acknowledgement:
    return NOTHING_COUNTED if entry == _listed(NOTHING_COUNTED) else acknowledgement_of(entry)


def _listed(each: Acknowledgement) -> list[Any]:
    return [each.round, each.digest, each.share]
