"""The ring of a secure sum: all its clients in one order, which makes their neighbours, and what they sign about it.

With one ring, one set of clients that shared their secrets and one set of those alive, there is one graph of masks:
everybody can check that the clients alive hang together in it. Each client signs what it was told of these sets once,
and unmasks only with the signatures of so many that another such group would share an honest client with it
(Bonawitz et al. 2017, section 6.2; Bell et al. 2020 for the neighbours).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from fedsparq.errors import SecureSumError, WireError
from fedsparq.secure.keys import check_signature, statement
from fedsparq.secure.terms import Terms


def number_bytes(client: int) -> bytes:
    if not 0 <= client < 2**32:
        raise WireError(f"there is no client {client}")
    return client.to_bytes(4, "big")


@dataclass(frozen=True)
class Ring:
    """The clients of a sum, in order, each with its node's key."""

    terms: Terms
    nodes: Mapping[int, bytes]

    @cached_property
    def _places(self) -> dict[int, int]:
        return {client: place for place, client in enumerate(self.nodes)}

    @cached_property
    def _order(self) -> list[int]:
        return list(self.nodes)

    def near(self, client: int) -> set[int]:
        """Return a client's neighbours: the nearest on both sides, or all others where that is fewer."""
        order, place = self._order, self._places[client]
        if self.terms.neighbours >= len(order) - 1:
            return set(order) - {client}
        steps = range(1, self.terms.neighbours // 2 + 1)
        return {order[(place + step) % len(order)] for far in steps for step in (far, -far)}

    def check_part(self, part: Collection[int], client: int) -> None:
        """Raise SecureSumError unless these are enough clients of the ring, and this client is among them."""
        survivors, known = self.terms.survivors, self.nodes.keys() >= set(part)
        if not (known and client in part and survivors <= len(part) <= self.terms.clients):
            raise SecureSumError(
                f"{len(part)} clients are told of; it must be {survivors} to {self.terms.clients} of the ring, "
                f"and client {client} among them"
            )

    def check_alive(self, shared: frozenset[int], alive: frozenset[int], client: int) -> None:
        """Raise SecureSumError unless the masks between the clients alive still hide each of them in one sum of all."""
        self.check_part(alive, client)
        if not alive <= shared:
            raise SecureSumError("a client that did not share its secrets cannot be alive")
        for each in alive:
            if len(self.near(each) & alive) < self.terms.threshold:
                raise SecureSumError(f"client {each} has fewer than {self.terms.threshold} neighbours alive")

    def masked_text(self, shared: Collection[int]) -> bytes:
        """Return what a client signs with its masked numbers: whose masks are in them."""
        return self._text(b"masked", shared)

    def alive_text(self, shared: Collection[int], alive: Collection[int]) -> bytes:
        """Return what a client signs before it unmasks: who is alive."""
        return self._text(b"alive", shared, alive)

    def check_signatures(self, signatures: Mapping[int, bytes], text: bytes) -> None:
        for client, signature in signatures.items():
            check_signature(self.nodes[client], signature, text)

    def _text(self, purpose: bytes, *parts: Collection[int]) -> bytes:
        nodes = b"".join(number_bytes(client) + node for client, node in self.nodes.items())
        listed = (b"".join(map(number_bytes, sorted(part))) for part in parts)
        return statement(purpose, self.terms.encode(), nodes, *listed)
