"""The server's part in a secure sum: it carries keys and shares between clients, adds masked numbers up, takes the
masks off the sum, and never sees the numbers of one client."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import SecureSumError, WireError
from fedsparq.secure import masks, messages, shamir
from fedsparq.secure.client import pairwise
from fedsparq.secure.keys import Agreement, check_signature, digest
from fedsparq.secure.messages import PublicKeys, kind_of
from fedsparq.secure.ring import Ring
from fedsparq.secure.terms import Terms

_TRIES = 1000
"""So many choices of shares are tried before a secret is given up: nearly always enough if one in five is wrong."""

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
    dropped out. Clients without enough neighbours left drop out too. Whoever spoils a sum so that it cannot be made is
    in `offenders`, and to be left out of the next one: `left_out`.
    """

    def __init__(
        self, terms: Terms, clients: list[int], refused: Refused | None = None, left_out: Collection[int] = ()
    ) -> None:
        if len(set(clients)) != terms.clients:
            raise SecureSumError(f"the terms are for {terms.clients} clients, not for {len(set(clients))}")
        self.terms, self._asked = terms, sorted(set(clients) - set(left_out))
        self._refused = refused or (lambda client, reason: None)
        self.offenders: set[int] = set()
        self._keys: dict[int, PublicKeys] = {}
        self._ring = Ring(terms, {})
        self._near: dict[int, set[int]] = {}
        self._sealed: dict[int, Mapping[int, bytes]] = {}
        self._alive: dict[int, bytes] = {}
        """Each client whose numbers are in the sum, with its signature on whose masks are in them."""
        self._total = np.zeros(terms.length, np.uint32)

    def invitations(self) -> dict[int, bytes]:
        return {client: messages.Invitation(client, self.terms).encode() for client in self._asked}

    def neighbourhoods(self, answers: Mapping[int, bytes]) -> dict[int, bytes]:
        """Who advertised sound keys is put on a ring in random order; each learns the keys of those nearest to it."""
        trial = Agreement(secrets.token_bytes(32))
        for client, said in self._read(messages.Advertised, answers, self._asked):
            with self._refusing(client):
                keys = said.keys
                check_signature(keys.node, keys.signature, keys.signed_text(self.terms, client))
                trial.with_public(keys.cipher)
                trial.with_public(keys.mask)
                if keys.node in {each.node for each in self._keys.values()}:
                    raise SecureSumError("its node has advertised keys as another client")
                self._keys[client] = keys
        self._enough(len(self._keys), "advertised keys")
        order = list(self._keys)
        secrets.SystemRandom().shuffle(order)
        self._ring = Ring(self.terms, {client: self._keys[client].node for client in order})
        self._near = {client: self._ring.near(client) for client in order}
        return {
            client: messages.Neighbourhood(self._ring.nodes, {other: self._keys[other] for other in near}).encode()
            for client, near in self._near.items()
        }

    def collected(self, answers: Mapping[int, bytes]) -> dict[int, bytes]:
        """To each who shared its secrets, who else did, and what its neighbours encrypted for it.

        Whoever is accused by so many that no sum can be made without them is left out of the next one.
        """
        accusing = {client: answer for client, answer in answers.items() if kind_of(answer) == messages.Accusation.kind}
        accused = [said.client for _, said in self._read(messages.Accusation, accusing, self._near)]
        self.offenders |= {
            client for client in self._near if accused.count(client) > len(self._near) - self.terms.survivors
        }
        others = {client: answer for client, answer in answers.items() if client not in accusing}
        for client, said in self._read(messages.Shared, others, self._near):
            with self._refusing(client):
                if said.sealed.keys() != self._near[client]:
                    raise SecureSumError("it did not share its secrets with just its neighbours")
                self._sealed[client] = said.sealed
        self._enough(len(self._sealed), "shared their secrets")
        shared = frozenset(self._sealed)
        return {
            client: messages.Collected(shared, {other: self._sealed[other][client] for other in near}).encode()
            for client in shared
            if len(near := self._near[client] & shared) >= self.terms.threshold
        }

    def add(self, client: int, answer: bytes) -> bool:
        """Add a client's masked numbers, as they come; whether they were."""
        with self._refusing(client):
            if client not in self._sealed or client in self._alive:
                raise WireError("masked numbers that nobody asked for")
            said = messages.Masked.decode(answer)
            self._ring.check_signatures({client: said.signature}, self._ring.masked_text(self._sealed))
            self._total += masks.unpack(said.data, self.terms.length, self.terms.bits)
            self._alive[client] = said.signature
            return True
        return False

    def survivors(self) -> dict[int, bytes]:
        """To each whose numbers are in the sum: whose else are, and its neighbours' signatures."""
        self._enough(len(self._alive), "sent their numbers")
        alive = frozenset(self._alive)
        return {
            client: messages.Survivors(
                alive, {other: self._alive[other] for other in self._near[client] & alive}
            ).encode()
            for client in alive
        }

    def confirmations(self, answers: Mapping[int, bytes]) -> dict[int, bytes]:
        """To each who signed who is alive, the signatures of all who did."""
        signatures, text = {}, self._ring.alive_text(self._sealed, self._alive)
        for client, said in self._read(messages.Confirmed, answers, self._alive):
            with self._refusing(client):
                self._ring.check_signatures({client: said.signature}, text)
                signatures[client] = said.signature
        self._enough(len(signatures), "signed who is alive")
        return dict.fromkeys(signatures, messages.Confirmations(signatures).encode())

    def result(self, answers: Mapping[int, bytes]) -> Sum:
        """The sum without its masks."""
        terms, given, answered, faults = self.terms, dict[int, dict[int, bytes]](), set(), Counter[int]()
        for client, said in self._read(messages.Unmasking, answers, self._alive):
            answered.add(client)
            for neighbour in said.shares.keys() & self._near[client]:
                given.setdefault(neighbour, {})[client] = said.shares[neighbour]

        def joined(client: int, right: Callable[[bytes], bool]) -> bytes:
            return self._joined(client, given.get(client, {}), answered, faults, right)

        total = self._total.copy()
        for client in sorted(self._alive):
            commitment = self._keys[client].commitment
            seed = joined(client, lambda secret, expected=commitment: digest(secret) == expected)  # type: ignore[misc]
            total -= masks.mask(seed, terms.length, terms.bits)
        for client in sorted(self._sealed.keys() - self._alive.keys()):
            if not (masked := self._near[client] & self._alive.keys()):
                continue
            public = self._keys[client].mask
            own = joined(client, lambda secret, expected=public: Agreement(secret).public == expected)  # type: ignore[misc]
            for other in masked:
                total += pairwise(Agreement(own), self._keys[other].mask, terms, client, other)
        levels = masks.lifted(total & np.uint32(2**terms.bits - 1), terms.bits)
        return Sum(levels, tuple(sorted(self._alive)))

    def _joined(
        self,
        client: int,
        given: Mapping[int, bytes],
        answered: set[int],
        faults: Counter[int],
        right: Callable[[bytes], bool],
    ) -> bytes:
        """A client's secret from its neighbours' shares, of which some may be wrong.

        If it is not what the client has committed to, the client is to blame: a few wrong shares do no harm.
        """
        needed, random = self.terms.threshold, secrets.SystemRandom()
        chosen = sorted(given, key=faults.__getitem__)[:needed]
        for trial in range(_TRIES if len(given) >= needed else 0):
            shares = {giver + 1: given[giver] for giver in chosen}
            with suppress(SecureSumError):
                if right(secret := shamir.join(shares)):
                    points = given if trial else ()
                    wrong = [each for each in points if shamir.share(shares, each + 1) != given[each]]
                    for giver in wrong:
                        self._refused(giver, f"its share of client {client}'s secret is wrong")
                    faults.update(wrong)
                    return secret
            chosen = random.sample(sorted(given), needed)
        if len(given) >= needed or len(self._near[client] & answered) >= needed:
            self.offenders.add(client)
        raise SecureSumError(
            f"client {client}'s secret cannot be put together: {len(given)} shares came, {needed} are needed"
        )

    @contextmanager
    def _refusing(self, client: int) -> Iterator[None]:
        """Refuse the client's answer if it is not right; the sum goes on."""
        try:
            yield
        except WireError as error:
            self._refused(client, str(error))

    def _read(self, message: Any, answers: Mapping[int, bytes], asked: Container[int]) -> Iterator[tuple[int, Any]]:
        for client in sorted(answers):
            with self._refusing(client):
                if client not in asked:
                    raise WireError("it was not asked in this stage")
                yield client, message.decode(answers[client])

    def _enough(self, count: int, what: str) -> None:
        if count < self.terms.survivors:
            raise SecureSumError(f"{count} clients {what}, at least {self.terms.survivors} are needed: no sum is made")
