"""A server that tells each client another story, without clients of its own: nothing in clear, nothing but sums of all.

The liar keeps every message, so it knows all that a server can know; its clients are honest and alone with its words.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from fedsparq.errors import SecureSumError
from fedsparq.secure import Member, SecureSum, Terms
from fedsparq.secure.keys import NodeKey
from fedsparq.secure.messages import (
    Collected,
    Confirmations,
    Confirmed,
    Invitation,
    Masked,
    Neighbourhood,
    Survivors,
    Unmasking,
)

SIZES = [3, 4, 5, 6, 8, 10, 12, 20, 33, 34, 66, 100]


class Liar:
    """A server whose clients have shared their secrets with their neighbours; what it does next is a test's."""

    def __init__(self, clients: int, colluders: int = 0) -> None:
        self.terms = Terms.usual("test", 1, 8, 16, clients, colluders)
        self.members = {client: Member(NodeKey(client.to_bytes(32, "big"))) for client in range(clients)}
        self.all = frozenset(self.members)
        self.server = SecureSum(self.terms, list(self.members))
        said = {client: self.members[client].advertise(r) for client, r in self.server.invitations().items()}
        self.told = self.server.neighbourhoods(said)
        self.near = {client: set(Neighbourhood.decode(told).keys) for client, told in self.told.items()}
        shared = {client: self.members[client].share(request) for client, request in self.told.items()}
        self.requests = self.server.collected(shared)
        self.consents: dict[int, bytes] = {}
        """What each client has signed of whose masks are in its numbers."""
        self.seeds: dict[int, set[int]] = {client: set() for client in self.all}
        self.keys: dict[int, set[int]] = {client: set() for client in self.all}
        """Of each client's secrets, whose shares the liar has got."""

    def mask(self) -> None:
        for client, request in self.requests.items():
            answer = self.members[client].masked(request, np.full(8, client))
            self.consents[client] = Masked.decode(answer).signature

    def confirm(self, client: int, alive: frozenset[int]) -> bytes | None:
        """A client's signature on who is alive; None if it refuses."""
        signatures = {other: self.consents[other] for other in self.near[client] & alive}
        try:
            return Confirmed.decode(self.members[client].confirm(Survivors(alive, signatures).encode())).signature
        except SecureSumError:
            return None

    def unmask(self, client: int, alive: Iterable[int], signatures: dict[int, bytes]) -> bool:
        """Whether a client gives its shares for these signatures."""
        try:
            answer = self.members[client].unmask(Confirmations(signatures).encode())
        except SecureSumError:
            return False
        for other in Unmasking.decode(answer).shares:
            (self.seeds if other in set(alive) else self.keys)[other].add(client)
        return True

    def tell(self, stories: dict[int, frozenset[int]]) -> set[frozenset[int]]:
        """Tell each client its story and show it all signatures that were made on it, or on anything else; of which
        stories shares came."""
        signed: dict[frozenset[int], dict[int, bytes]] = {}
        for client, alive in stories.items():
            if signature := self.confirm(client, alive):
                signed.setdefault(alive, {})[client] = signature
        every = {client: signature for group in signed.values() for client, signature in group.items()}
        got = set()
        for client, alive in stories.items():
            for signatures in (signed.get(alive, {}), every, {c: s for c, s in every.items() if c in alive}):
                if self.unmask(client, alive, signatures):
                    got.add(alive)
                    break
        return got

    def secret_of_two_kinds(self) -> set[int]:
        """Clients of which the liar has both secrets."""
        enough = self.terms.threshold
        return {client for client in self.all if min(len(self.seeds[client]), len(self.keys[client])) >= enough}

    def in_clear(self, gone: Iterable[int] = ()) -> set[int]:
        """Clients whose own mask and all pairwise masks the liar can take off."""
        known = {client for client in self.all if len(self.keys[client]) >= self.terms.threshold} | set(gone)
        return {
            client
            for client in self.all - known
            if len(self.seeds[client]) >= self.terms.threshold and self.near[client] <= known
        }


@pytest.mark.parametrize("clients", SIZES)
def test_the_target_that_hears_of_few_neighbours_takes_no_part(clients: int) -> None:
    """The attack that worked: the target masks with `threshold` neighbours, all of which are then called dead."""
    liar = Liar(clients)
    told, target = Collected.decode(liar.requests[0]), liar.members[0]
    few = dict(list(told.sealed.items())[: liar.terms.threshold])
    if len(few) < len(told.sealed):
        with pytest.raises(SecureSumError):
            target.masked(Collected(told.shared, few).encode(), np.zeros(8, int))
    gone = told.sealed.keys() - few.keys()
    if len(told.shared - gone) < liar.terms.survivors:
        with pytest.raises(SecureSumError):
            target.masked(Collected(told.shared - gone, few).encode(), np.zeros(8, int))
        return
    # enough clients for it to believe it; but then it has signed another story than the others
    signed = Masked.decode(target.masked(Collected(told.shared - gone, few).encode(), np.zeros(8, int))).signature
    del liar.requests[0]
    liar.mask()
    liar.consents[0] = signed
    alive = liar.all - few.keys()
    assert not [client for client in liar.near[0] if liar.confirm(client, alive)]
    assert not gone or not [client for client in liar.near[0] if liar.confirm(client, liar.all)]


@pytest.mark.parametrize("clients", SIZES)
def test_two_stories_have_not_enough_signatures_each(clients: int) -> None:
    """Each client is told another set of the dead, or one of two, however the two are split."""
    rng = np.random.default_rng(clients)
    for trial in range(6 if clients < 30 else 1):
        liar = Liar(clients)
        liar.mask()
        most = clients - liar.terms.survivors
        dead = [frozenset(map(int, rng.choice(clients, rng.integers(0, most + 1), False))) for _ in range(2 + trial)]
        order = rng.permutation(clients)
        stories = {int(client): liar.all - dead[place % len(dead)] for place, client in enumerate(order)}
        assert len(liar.tell(stories)) <= 1
        assert not liar.secret_of_two_kinds()
        assert not liar.in_clear()


def test_every_split_of_five_clients_between_two_stories() -> None:
    sums = 0
    for size in range(6):
        for first in combinations(range(5), size):
            for dead in (0, 1, 4):
                liar = Liar(5)
                liar.mask()
                stories = {client: liar.all if client in first else liar.all - {dead} for client in range(5)}
                sums += len(got := liar.tell(stories))
                assert len(got) <= 1
                assert not liar.secret_of_two_kinds()
                assert not liar.in_clear()
    assert sums  # those of one story are told


@pytest.mark.parametrize("clients", SIZES)
def test_enough_signatures_are_those_of_clients_on_the_same_story(clients: int) -> None:
    liar = Liar(clients)
    liar.mask()
    signed = {client: liar.confirm(client, liar.all) for client in liar.all}
    good = {client: signature for client, signature in signed.items() if signature}
    least, last = liar.terms.survivors, max(good)
    forged = NodeKey(bytes([7]) * 32).sign(b"")
    assert len(good) == clients
    assert not liar.unmask(0, liar.all, dict(list(good.items())[: least - 1]))
    assert not liar.unmask(0, liar.all, good | {last: forged})
    assert not liar.unmask(0, liar.all, good | {last: good[0]})
    assert not liar.unmask(0, liar.all, good | {last: liar.consents[last]})
    assert not liar.unmask(0, liar.all, {client + (client == last): signed for client, signed in good.items()})
    assert liar.unmask(0, liar.all, good)
    assert liar.confirm(0, liar.all - {last}) is None  # nobody signs twice


@pytest.mark.parametrize("clients", [8, 20, 100])
def test_one_ring_for_all(clients: int) -> None:
    """Clients that were told of different rings do not unmask each other, so no small group is summed alone."""
    liar = Liar(clients)
    told = Neighbourhood.decode(liar.told[0])
    other = dict(reversed(told.ring.items()))
    twin = Member(NodeKey(bytes(32)), secret=liar.members[0].secret)
    twin.advertise(Invitation(0, liar.terms).encode())
    twin.share(Neighbourhood(other, told.keys).encode())
    liar.members[0] = twin
    liar.mask()
    assert not [client for client in liar.near[0] if liar.confirm(client, liar.all)]


@pytest.mark.parametrize("clients", [34, 66, 100])
def test_nobody_is_left_with_few_neighbours(clients: int) -> None:
    """All who are alive hang together: else the sum of some of them could be told alone."""
    liar = Liar(clients)
    liar.mask()
    cut = set(list(liar.near[0])[: len(liar.near[0]) - liar.terms.threshold + 1])
    alive = liar.all - cut
    if len(alive) >= liar.terms.survivors:
        assert not [client for client in alive if liar.confirm(client, alive)]


def test_another_number_of_clients_is_another_sum() -> None:
    liar = Liar(6)
    smaller = replace(liar.terms, clients=5, survivors=4, threshold=3, neighbours=4)
    told = Neighbourhood.decode(liar.told[0])
    fresh = Member(NodeKey(bytes(32)))
    fresh.advertise(Invitation(0, smaller).encode())
    with pytest.raises(SecureSumError):
        fresh.share(Neighbourhood({**told.ring}, told.keys).encode())
