"""One client's part in one secure sum: a state machine that answers each stage once, and never gives both secrets.

All its keys come from one random secret, so what must be kept between two stages, where each is handled by a new
process, is that secret and the messages that came. A request that comes again gets the same bytes again; another
request for the same stage is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.archive import ArchiveError, pack, unpack
from fedsparq.errors import SecureSumError, WireError
from fedsparq.secure import masks, shamir
from fedsparq.secure.keys import Agreement, NodeKey, check_signature, decrypt, derive, digest, encrypt
from fedsparq.secure.messages import (
    Advertised,
    Collected,
    Invitation,
    Masked,
    Neighbourhood,
    PublicKeys,
    Shared,
    Survivors,
    Unmasking,
)
from fedsparq.secure.terms import Terms

_FIRST, _LAST = 1, 4


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

    def advertise(self, request: bytes) -> bytes:
        """Stage 1: an invitation in, public keys out."""

        def answer() -> bytes:
            invitation = Invitation.decode(request)
            keys = PublicKeys(self.node.public, self._cipher.public, self._mask.public, digest(self._seed))
            signature = self.node.sign(keys.signed_text(invitation.terms, invitation.client))
            signed = PublicKeys(keys.node, keys.cipher, keys.mask, keys.commitment, signature)
            return Advertised(signed).encode()

        return self._once(1, request, answer)

    def share(self, request: bytes) -> bytes:
        """Stage 2: the neighbours' keys in, shares for them out."""

        def answer() -> bytes:
            keys = Neighbourhood.decode(request).keys
            self._check_neighbours(keys)
            threshold, points = self.terms.threshold, [neighbour + 1 for neighbour in keys]
            seeds = shamir.split(self._seed, threshold, points)
            private = shamir.split(self._mask.private, threshold, points)
            return Shared(
                {
                    neighbour: encrypt(
                        self._channel(neighbour, theirs, out=True), seeds[neighbour + 1] + private[neighbour + 1]
                    )
                    for neighbour, theirs in keys.items()
                }
            ).encode()

        return self._once(2, request, answer)

    def masked(self, request: bytes, levels: NDArray[Any], digest: bytes = bytes(8)) -> bytes:
        """Stage 3: the neighbours' shares and this client's own whole numbers in, masked numbers out."""

        def answer() -> bytes:
            sealed, terms = Collected.decode(request).sealed, self.terms
            neighbours = self._neighbours
            if not sealed.keys() <= neighbours.keys() or len(sealed) < terms.threshold:
                raise SecureSumError(f"shares of {len(sealed)} neighbours came, at least {terms.threshold} are needed")
            for neighbour, text in sealed.items():
                decrypt(self._channel(neighbour, neighbours[neighbour], out=False), text)
            if levels.shape != (terms.length,):
                raise SecureSumError(f"the sum is of {terms.length} numbers, not of {levels.size}")
            total = masks.wrapped(levels, terms.bits) + masks.mask(self._seed, terms.length, terms.bits)
            for neighbour in sealed:
                total += self._pairwise(neighbour, neighbours[neighbour])
            return Masked(masks.pack(total & np.uint32(2**terms.bits - 1), terms.bits), digest).encode()

        return self._once(3, request, answer)

    def unmask(self, request: bytes) -> bytes:
        """Stage 4: who of the neighbours is alive and who is not in, one share of each out."""

        def answer() -> bytes:
            survivors, sealed = Survivors.decode(request), Collected.decode(self.requests[3]).sealed
            if survivors.alive & survivors.dead:
                raise SecureSumError("a neighbour cannot be alive and dead: both of its secrets would be known")
            if survivors.alive | survivors.dead != sealed.keys():
                raise SecureSumError("alive and dead must be just the neighbours whose shares this client got")
            if len(survivors.alive) < self.terms.threshold:
                raise SecureSumError(f"{len(survivors.alive)} neighbours are alive, fewer than {self.terms.threshold}")
            shares = {}
            for neighbour, text in sealed.items():
                pair = decrypt(self._channel(neighbour, self._neighbours[neighbour], out=False), text)
                shares[neighbour] = pair[: shamir.SHARE] if neighbour in survivors.alive else pair[shamir.SHARE :]
            return Unmasking(shares).encode()

        return self._once(4, request, answer)

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
        except (ArchiveError, KeyError, ValueError, AttributeError) as error:
            raise SecureSumError(f"the state of a secure sum cannot be read: {error}") from None
        for stage in range(_FIRST, _LAST + 1):
            if f"answer.{stage}" in arrays:
                made.requests[stage] = arrays[f"request.{stage}"].tobytes()
                made.answers[stage] = arrays[f"answer.{stage}"].tobytes()
        return made

    def _once(self, stage: int, request: bytes, answer: Any) -> bytes:
        if stage in self.answers:
            if request != self.requests[stage]:
                raise SecureSumError(f"another request for stage {stage}, which was answered: refused")
            return self.answers[stage]
        if stage != len(self.answers) + 1:
            raise SecureSumError(f"stage {stage} cannot follow stage {len(self.answers)}")
        made: bytes = answer()
        self.requests[stage], self.answers[stage] = request, made
        return made

    @property
    def _invitation(self) -> Invitation:
        if 1 not in self.requests:
            raise SecureSumError("this client was not invited yet")
        return Invitation.decode(self.requests[1])

    @property
    def _neighbours(self) -> Mapping[int, PublicKeys]:
        return Neighbourhood.decode(self.requests[2]).keys

    @property
    def _cipher(self) -> Agreement:
        return Agreement(derive(self.secret, b"cipher key"))

    @property
    def _mask(self) -> Agreement:
        return Agreement(derive(self.secret, b"mask key"))

    @property
    def _seed(self) -> bytes:
        return derive(self.secret, b"own mask")

    def _check_neighbours(self, keys: Mapping[int, PublicKeys]) -> None:
        terms = self.terms
        if self.number in keys or not terms.threshold <= len(keys) <= terms.neighbours:
            raise SecureSumError(f"{len(keys)} neighbours are not from {terms.threshold} to {terms.neighbours} others")
        if len({each.node for each in keys.values()} | {self.node.public}) != len(keys) + 1:
            raise SecureSumError("one node stands behind several neighbours")
        for neighbour, theirs in keys.items():
            check_signature(theirs.node, theirs.signature, theirs.signed_text(terms, neighbour))
            if self.known.get(neighbour, theirs.node) != theirs.node:
                raise SecureSumError(f"client {neighbour} shows another node's key than before")

    def _channel(self, neighbour: int, theirs: PublicKeys, out: bool) -> bytes:
        """The key for what goes out to a neighbour, or comes in from it."""
        ends = (self.number, neighbour) if out else (neighbour, self.number)
        return derive(self._cipher.with_public(theirs.cipher), b"share", self.terms.encode(), *map(_number, ends))

    def _pairwise(self, neighbour: int, theirs: PublicKeys) -> masks.Words:
        terms = self.terms
        return pairwise(self._mask, theirs.mask, terms, self.number, neighbour)


def pairwise(own: Agreement, other: bytes, terms: Terms, client: int, neighbour: int) -> masks.Words:
    """What a client adds for a neighbour; the neighbour adds the opposite."""
    ends = min(client, neighbour), max(client, neighbour)
    key = derive(own.with_public(other), b"mask", terms.encode(), *map(_number, ends))
    made = masks.mask(key, terms.length, terms.bits)
    return made if client < neighbour else np.negative(made)


def _number(client: int) -> bytes:
    if not 0 <= client < 2**32:
        raise WireError(f"there is no client {client}")
    return client.to_bytes(4, "big")
