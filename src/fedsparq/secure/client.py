"""One client's part in one secure sum: a state machine that answers each stage once, and never gives both secrets.

All its keys come from one random secret, so what must be kept between two stages, where each is handled by a new
process, is that secret and the messages that came. A request that comes again gets the same bytes again; another
request for the same stage is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.archive import ArchiveError, pack, unpack
from fedsparq.errors import SecureSumError
from fedsparq.secure import masks, messages, shamir
from fedsparq.secure.keys import Agreement, NodeKey, check_signature, decrypt, derive, digest, encrypt
from fedsparq.secure.messages import PublicKeys
from fedsparq.secure.ring import Ring, number_bytes
from fedsparq.secure.terms import Terms

_FIRST, _LAST = 1, 5


class StrangerError(SecureSumError):
    """A client shows another node's key than before."""

    def __init__(self, client: int) -> None:
        super().__init__(f"client {client} shows another node's key than before")
        self.client = client


def _stage(number: int) -> Callable[[Callable[..., bytes]], Callable[..., bytes]]:
    """Let a request of this stage be answered once, after those before; the same request gets the same bytes again."""

    def once(answer: Callable[..., bytes]) -> Callable[..., bytes]:
        @wraps(answer)
        def answered(self: Member, request: bytes, *more: Any) -> bytes:
            if number not in self.answers:
                if number != len(self.answers) + 1:
                    raise SecureSumError(f"stage {number} cannot follow stage {len(self.answers)}")
                made = answer(self, request, *more)
                self.requests[number], self.answers[number] = request, made
            elif request != self.requests[number]:
                raise SecureSumError(f"another request for stage {number}, which was answered: refused")
            return self.answers[number]

        return answered

    return once


@dataclass
class Member:
    """A client in the sum that an invitation named.

    `known` are the nodes' public keys that this client has seen before, by client: another key under a known number is
    refused, so that a server cannot put itself in a client's place later on.
    """

    node: NodeKey
    known: Mapping[int, bytes] = field(default_factory=dict)
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    requests: dict[int, bytes] = field(default_factory=dict, repr=False)
    """The request of each stage that was answered."""
    answers: dict[int, bytes] = field(default_factory=dict, repr=False)

    @property
    def terms(self) -> Terms:
        return self._invitation.terms

    @property
    def number(self) -> int:
        return self._invitation.client

    @_stage(1)
    def advertise(self, request: bytes) -> bytes:
        """Stage 1: an invitation in, public keys out."""
        invitation = messages.Invitation.decode(request)
        keys = PublicKeys(self.node.public, self._cipher.public, self._mask.public, digest(self._seed))
        signature = self.node.sign(keys.signed_text(invitation.terms, invitation.client))
        signed = PublicKeys(keys.node, keys.cipher, keys.mask, keys.commitment, signature)
        return messages.Advertised(signed).encode()

    @_stage(2)
    def share(self, request: bytes) -> bytes:
        """Stage 2: the ring and the neighbours' keys in, shares for the neighbours out."""
        told = messages.Neighbourhood.decode(request)
        self._check_ring(told)
        threshold, points = self.terms.threshold, [neighbour + 1 for neighbour in told.keys]
        seeds = shamir.split(self._seed, threshold, points)
        private = shamir.split(self._mask.private, threshold, points)
        return messages.Shared(
            {
                neighbour: encrypt(
                    self._channel(neighbour, theirs, out=True), seeds[neighbour + 1] + private[neighbour + 1]
                )
                for neighbour, theirs in told.keys.items()
            }
        ).encode()

    @_stage(3)
    def masked(self, request: bytes, levels: NDArray[Any], digest: bytes = bytes(8)) -> bytes:
        """Stage 3: who shared and this client's own whole numbers in, masked numbers out."""
        told, terms, ring, neighbours = messages.Collected.decode(request), self.terms, self.ring, self._neighbours
        ring.check_part(told.shared, self.number)
        if told.sealed.keys() != neighbours.keys() & told.shared or len(told.sealed) < terms.threshold:
            raise SecureSumError(
                f"shares of {len(told.sealed)} neighbours came; it must be all who shared, and at least "
                f"{terms.threshold}"
            )
        if levels.shape != (terms.length,):
            raise SecureSumError(f"the sum is of {terms.length} numbers, not of {levels.size}")
        total = masks.wrapped(levels, terms.bits) + masks.mask(self._seed, terms.length, terms.bits)
        for neighbour in told.sealed:
            total += pairwise(self._mask, neighbours[neighbour].mask, terms, self.number, neighbour)
        packed = masks.pack(total & np.uint32(2**terms.bits - 1), terms.bits)
        return messages.Masked(digest, self.node.sign(ring.masked_text(told.shared)), packed).encode()

    @_stage(4)
    def confirm(self, request: bytes) -> bytes:
        """Stage 4: who is alive in, a signature on it out: nobody signs two stories."""
        told, ring, shared = messages.Survivors.decode(request), self.ring, self._shared
        ring.check_alive(shared, told.alive, self.number)
        if told.signatures.keys() != self._neighbours.keys() & told.alive:
            raise SecureSumError("signatures must be those of the neighbours that are alive")
        ring.check_signatures(told.signatures, ring.masked_text(shared))
        return messages.Confirmed(self.node.sign(ring.alive_text(shared, told.alive))).encode()

    @_stage(5)
    def unmask(self, request: bytes) -> bytes:
        """Stage 5: the signatures of enough others on the same story in, one share of each neighbour out.

        Of a neighbour whose encrypted shares cannot be read there is none: the others' will do.
        """
        signatures, ring, sealed = messages.Confirmations.decode(request).signatures, self.ring, self._collected.sealed
        alive = messages.Survivors.decode(self.requests[4]).alive
        if not signatures.keys() <= alive or len(signatures) < self.terms.survivors:
            raise SecureSumError(
                f"{len(signatures)} clients have signed who is alive, at least {self.terms.survivors} of the "
                f"{len(alive)} are needed"
            )
        ring.check_signatures(signatures, ring.alive_text(self._shared, alive))
        shares, neighbours = {}, self._neighbours
        for neighbour, text in sealed.items():
            with suppress(SecureSumError):
                pair = decrypt(self._channel(neighbour, neighbours[neighbour], out=False), text)
                shares[neighbour] = pair[: shamir.SHARE] if neighbour in alive else pair[shamir.SHARE :]
        return messages.Unmasking(shares).encode()

    def encode(self) -> bytes:
        """Everything to be kept between two stages. It holds secrets: for this client's eyes only."""
        arrays = {f"request.{stage}": np.frombuffer(data, np.uint8) for stage, data in self.requests.items()}
        arrays |= {f"answer.{stage}": np.frombuffer(data, np.uint8) for stage, data in self.answers.items()}
        known = {str(client): key.hex() for client, key in self.known.items()}
        return pack({"secret": self.secret.hex(), "node": self.node.private.hex(), "known": known}, arrays)

    @classmethod
    def decode(cls, data: bytes) -> Member:
        try:
            about, arrays = unpack(data)
            known = {int(client): bytes.fromhex(key) for client, key in about["known"].items()}
            made = cls(NodeKey(bytes.fromhex(about["node"])), known, bytes.fromhex(about["secret"]))
            for stage in range(_FIRST, _LAST + 1):
                if f"answer.{stage}" in arrays:
                    made.requests[stage] = arrays[f"request.{stage}"].tobytes()
                    made.answers[stage] = arrays[f"answer.{stage}"].tobytes()
        except (ArchiveError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise SecureSumError(f"the state of a secure sum cannot be read: {error}") from None
        return made

    @property
    def _invitation(self) -> messages.Invitation:
        if 1 not in self.requests:
            raise SecureSumError("this client was not invited yet")
        return messages.Invitation.decode(self.requests[1])

    @property
    def ring(self) -> Ring:
        return Ring(self.terms, messages.Neighbourhood.decode(self.requests[2]).ring)

    @property
    def _neighbours(self) -> Mapping[int, PublicKeys]:
        return messages.Neighbourhood.decode(self.requests[2]).keys

    @property
    def _collected(self) -> messages.Collected:
        return messages.Collected.decode(self.requests[3])

    @property
    def _shared(self) -> frozenset[int]:
        return self._collected.shared

    @property
    def _cipher(self) -> Agreement:
        return Agreement(derive(self.secret, b"cipher key"))

    @property
    def _mask(self) -> Agreement:
        return Agreement(derive(self.secret, b"mask key"))

    @property
    def _seed(self) -> bytes:
        return derive(self.secret, b"own mask")

    def _check_ring(self, told: messages.Neighbourhood) -> None:
        ring = Ring(self.terms, told.ring)
        ring.check_part(ring.nodes.keys(), self.number)
        if ring.nodes[self.number] != self.node.public or len(set(ring.nodes.values())) != len(ring.nodes):
            raise SecureSumError("a ring must have this client's own node once, and no node twice")
        for client, node in ring.nodes.items():
            if self.known.get(client, node) != node:
                raise StrangerError(client)
        if told.keys.keys() != ring.near(self.number):
            raise SecureSumError("the keys that came are not those of the neighbours on the ring")
        for neighbour, theirs in told.keys.items():
            if theirs.node != ring.nodes[neighbour]:
                raise SecureSumError(f"the keys of client {neighbour} are of another node than the one on the ring")
            check_signature(theirs.node, theirs.signature, theirs.signed_text(self.terms, neighbour))

    def _channel(self, neighbour: int, theirs: PublicKeys, out: bool) -> bytes:
        """The key for what goes out to a neighbour, or comes in from it."""
        ends = (self.number, neighbour) if out else (neighbour, self.number)
        return derive(self._cipher.with_public(theirs.cipher), b"share", self.terms.encode(), *map(number_bytes, ends))


def pairwise(own: Agreement, other: bytes, terms: Terms, client: int, neighbour: int) -> masks.Words:
    """What a client adds for a neighbour; the neighbour adds the opposite."""
    ends = min(client, neighbour), max(client, neighbour)
    key = derive(own.with_public(other), b"mask", terms.encode(), *map(number_bytes, ends))
    made = masks.mask(key, terms.length, terms.bits)
    return made if client < neighbour else np.negative(made)
