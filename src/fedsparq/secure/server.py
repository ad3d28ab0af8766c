"""The server's part in a secure sum: it carries keys and shares between clients, adds masked numbers up, takes the
masks off the sum, and never sees the numbers of one client."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import SecureSumError, WireError
from fedsparq.secure import masks, shamir
from fedsparq.secure.client import pairwise
from fedsparq.secure.keys import Agreement, digest
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

Refused = Callable[[int, str], None]
"""Told of each client whose answer was refused, and why."""


@dataclass(frozen=True)
class Sum:
    """What a secure sum gives: the sum, and whose numbers are in it."""

    levels: NDArray[np.int64]
    clients: tuple[int, ...]


class SecureSum:
    """One sum from its invitations to its result, or to a `SecureSumError`: then nobody's numbers were used.

    Each stage takes the answers that came to the requests of the one before; who did not answer, or wrongly, has
    dropped out. Clients without enough neighbours left drop out too.
    """

    def __init__(self, terms: Terms, clients: list[int], refused: Refused | None = None) -> None:
        if len(set(clients)) != terms.clients:
            raise SecureSumError(f"the terms are for {terms.clients} clients, not for {len(set(clients))}")
        self.terms, self._asked = terms, sorted(clients)
        self._refused = refused or (lambda client, reason: None)
        self._keys: dict[int, PublicKeys] = {}
        self._ring: dict[int, frozenset[int]] = {}
        self._sealed: dict[int, Mapping[int, bytes]] = {}
        self._alive: dict[int, frozenset[int]] = {}
        """Of each client whose numbers are in the sum, the neighbours whose masks are in them."""
        self._total = np.zeros(terms.length, np.uint32)

    def invitations(self) -> dict[int, bytes]:
        return {client: Invitation(client, self.terms).encode() for client in self._asked}

    def neighbourhoods(self, answers: Mapping[int, bytes]) -> dict[int, bytes]:
        """Who advertised keys is put on a ring in random order; each learns the keys of those nearest to it."""
        self._keys = {client: said.keys for client, said in self._read(Advertised.decode, answers, self._asked).items()}
        self._enough(len(self._keys), "advertised keys")
        order = list(self._keys)
        secrets.SystemRandom().shuffle(order)
        self._ring = ring(order, self.terms.neighbours)
        return {
            client: Neighbourhood({other: self._keys[other] for other in near}).encode()
            for client, near in self._ring.items()
        }

    def collected(self, answers: Mapping[int, bytes]) -> dict[int, bytes]:
        """To each who shared its secrets, what its neighbours encrypted for it."""
        for client, said in self._read(Shared.decode, answers, self._ring).items():
            if said.sealed.keys() == self._ring[client]:
                self._sealed[client] = said.sealed
            else:
                self._refused(client, "it did not share its secrets with just its neighbours")
        self._enough(len(self._sealed), "shared their secrets")
        return {
            client: Collected({other: self._sealed[other][client] for other in near}).encode()
            for client in self._sealed
            if len(near := self._ring[client] & self._sealed.keys()) >= self.terms.threshold
        }

    def add(self, client: int, answer: bytes) -> bool:
        """Add a client's masked numbers, as they come; whether they were."""
        near = self._ring.get(client, frozenset()) & self._sealed.keys()
        try:
            if client not in self._sealed or client in self._alive or len(near) < self.terms.threshold:
                raise WireError("masked numbers that nobody asked for")
            words = masks.unpack(Masked.decode(answer).data, self.terms.length, self.terms.bits)
        except WireError as error:
            self._refused(client, str(error))
            return False
        self._total += words
        self._alive[client] = near
        return True

    def survivors(self) -> dict[int, bytes]:
        """To each whose numbers are in the sum: which of its neighbours are, and which are not."""
        self._enough(len(self._alive), "sent their numbers")
        return {
            client: Survivors(near & self._alive.keys(), near - self._alive.keys()).encode()
            for client, near in self._alive.items()
        }

    def result(self, answers: Mapping[int, bytes]) -> Sum:
        """The sum without its masks."""
        shares: dict[int, dict[int, bytes]] = {}
        for client, said in self._read(Unmasking.decode, answers, self._alive).items():
            if said.shares.keys() != self._alive[client]:
                self._refused(client, "it did not give one share of each neighbour")
                continue
            for neighbour, share in said.shares.items():
                shares.setdefault(neighbour, {})[client + 1] = share
        total = self._total.copy()
        for client in sorted(self._alive):
            seed = self._joined(client, shares, lambda secret, keys: digest(secret) == keys.commitment)
            total -= masks.mask(seed, self.terms.length, self.terms.bits)
        for client in sorted(self._sealed.keys() - self._alive.keys()):
            masked = [other for other in self._alive if client in self._alive[other]]
            if not masked:
                continue
            own = Agreement(self._joined(client, shares, lambda secret, keys: Agreement(secret).public == keys.mask))
            for other in masked:
                total += pairwise(own, self._keys[other].mask, self.terms, client, other)
        levels = masks.lifted(total & np.uint32(2**self.terms.bits - 1), self.terms.bits)
        return Sum(levels, tuple(sorted(self._alive)))

    def _joined(self, client: int, shares: Mapping[int, Mapping[int, bytes]], right: Any) -> bytes:
        """A client's secret from its neighbours' shares; an error unless it is what the client had committed to."""
        given, needed = shares.get(client, {}), self.terms.threshold
        if len(given) < needed:
            raise SecureSumError(f"of client {client}'s secret {len(given)} shares came, {needed} are needed")
        points = sorted(given)
        for first in range(len(points) - needed + 1):
            with suppress(SecureSumError):
                secret = shamir.join({point: given[point] for point in points[first : first + needed]})
                if right(secret, self._keys[client]):
                    return secret
        raise SecureSumError(f"the shares of client {client}'s secret are not those it gave")

    def _read(self, decode: Any, answers: Mapping[int, bytes], asked: Any) -> dict[int, Any]:
        read = {}
        for client in sorted(answers):
            try:
                if client not in asked:
                    raise WireError("it was not asked in this stage")
                read[client] = decode(answers[client])
            except WireError as error:
                self._refused(client, str(error))
        return read

    def _enough(self, count: int, what: str) -> None:
        if count < self.terms.survivors:
            raise SecureSumError(f"{count} clients {what}, at least {self.terms.survivors} are needed: no sum is made")


def ring(order: list[int], neighbours: int) -> dict[int, frozenset[int]]:
    """Each client with the `neighbours` nearest to it on a ring; with all others where that is fewer."""
    count = len(order)
    if neighbours >= count - 1:
        return {client: frozenset(order) - {client} for client in order}
    steps = [step for far in range(1, neighbours // 2 + 1) for step in (far, -far)]
    near = {client: {order[(place + step) % count] for step in steps} for place, client in enumerate(order)}
    return {client: frozenset(others) for client, others in near.items()}
