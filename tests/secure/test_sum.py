"""Secure sums, whole: every way to drop out gives the exact sum or none, and no message gives away more than a sum."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from fedsparq.errors import OptionError, SecureSumError, WireError
from fedsparq.secure import Member, SecureSum, Terms
from fedsparq.secure.client import StrangerError
from fedsparq.secure.keys import NodeKey
from fedsparq.secure.messages import Advertised, Collected, Neighbourhood, Unmasking
from fedsparq.secure.ring import Ring
from fedsparq.secure.server import Sum

FOUR = Terms("test", 3, length=5, bits=11, clients=4, threshold=2, survivors=3, neighbours=3)


def levels_of(client: int, terms: Terms) -> np.ndarray:
    return np.random.default_rng(client).integers(-100, 101, terms.length)


def node(client: int) -> NodeKey:
    return NodeKey(bytes([client + 1]) * 32)


class Round:
    """A sum under way: the server, its members, and what travelled."""

    def __init__(self, terms: Terms = FOUR) -> None:
        self.refused: list[tuple[int, str]] = []
        self.terms = terms
        self.server = SecureSum(terms, list(range(terms.clients)), lambda *said: self.refused.append(said))
        self.members = {client: Member(node(client)) for client in range(terms.clients)}
        self.requests = self.server.invitations()

    def stage(self, name: str, there: Mapping[int, bool] | None = None) -> dict[int, bytes]:
        answers = {}
        for client, request in self.requests.items():
            if there is not None and not there[client]:
                continue
            member = self.members[client]
            more = (levels_of(client, self.terms),) if name == "masked" else ()
            answers[client] = getattr(member, name)(request, *more)
            assert getattr(member, name)(request, *more) == answers[client]  # asked again, same bytes
            self.members[client] = Member.decode(member.encode())  # each stage may be another process
        return answers

    def play(self, dropped: tuple[int, ...] = ()) -> Sum:
        """`dropped` says for each client at which stage it no longer answers; 5: it answers all."""
        last = dropped or (5,) * self.terms.clients

        def there(stage: int) -> dict[int, bool]:
            return {client: last[client] > stage for client in range(self.terms.clients)}

        self.requests = self.server.neighbourhoods(self.stage("advertise", there(0)))
        self.requests = self.server.collected(self.stage("share", there(1)))
        for client, answer in self.stage("masked", there(2)).items():
            assert self.server.add(client, answer)
        self.requests = self.server.survivors()
        self.requests = self.server.confirmations(self.stage("confirm", there(3)))
        return self.server.result(self.stage("unmask", there(4)))


def test_every_way_to_drop_out_gives_the_exact_sum_or_none() -> None:
    sums = 0
    for dropped in product(range(6), repeat=4):
        alive = [client for client in range(4) if dropped[client] > 2]
        confirmed = [client for client in alive if dropped[client] > 3]
        unmasking = [client for client in alive if dropped[client] > 4]
        try:
            result = Round().play(dropped)
        except SecureSumError:
            # too few, or some secret has fewer shares left than the threshold
            assert len(confirmed) < 3 or any(len(set(unmasking) - {client}) < 2 for client in range(4))
            continue
        sums += 1
        assert result.clients == tuple(alive)
        np.testing.assert_array_equal(result.levels, sum(levels_of(client, FOUR) for client in alive))
    assert sums == 1 + 4 * 5  # nobody drops out; or one of four does, at one of five stages


def test_on_a_ring_of_neighbours() -> None:
    terms = Terms("test", 1, length=3, bits=16, clients=12, threshold=5, survivors=7, neighbours=8)
    dropped = (5, 5, 2, 5, 5, 5, 5, 1, 5, 5, 4, 0)
    result = Round(terms).play(dropped)
    assert result.clients == (0, 1, 3, 4, 5, 6, 8, 9, 10)
    np.testing.assert_array_equal(result.levels, sum(levels_of(client, terms) for client in result.clients))


def test_a_ring_is_regular_and_mutual() -> None:
    ring = Ring(
        replace(FOUR, clients=7, neighbours=4, threshold=3, survivors=5), dict.fromkeys([5, 3, 8, 1, 9, 2, 7], b"")
    )
    near = {client: ring.near(client) for client in ring.nodes}
    assert all(len(others) == 4 and client not in others for client, others in near.items())
    assert all(client in near[other] for client, others in near.items() for other in others)


def test_the_largest_sums_do_not_overflow() -> None:
    """n L at both ends of what 2^bits holds."""
    terms = replace(FOUR, bits=9, length=2)
    playing = Round(terms)
    largest = np.array([63, -64])

    class Same(Member):
        def masked(self, request, levels):  # type: ignore[no-untyped-def]
            return super().masked(request, largest)

    playing.members = {client: Same(node(client)) for client in range(4)}
    requests = playing.server.neighbourhoods(
        {client: member.advertise(playing.requests[client]) for client, member in playing.members.items()}
    )
    requests = playing.server.collected({c: playing.members[c].share(requests[c]) for c in requests})
    for client in requests:
        playing.server.add(client, playing.members[client].masked(requests[client], largest))
    requests = playing.server.survivors()
    requests = playing.server.confirmations({c: playing.members[c].confirm(requests[c]) for c in requests})
    result = playing.server.result({c: playing.members[c].unmask(requests[c]) for c in requests})
    np.testing.assert_array_equal(result.levels, 4 * largest)


def until_unmasking() -> Round:
    playing = Round()
    playing.requests = playing.server.neighbourhoods(playing.stage("advertise"))
    playing.requests = playing.server.collected(playing.stage("share"))
    for client, answer in playing.stage("masked").items():
        playing.server.add(client, answer)
    playing.requests = playing.server.survivors()
    playing.requests = playing.server.confirmations(playing.stage("confirm"))
    return playing


@pytest.mark.parametrize("clients", [3, 4, 5, 20, 65])
def test_colluders_alone_give_no_secret_away_where_all_are_neighbours(clients: int) -> None:
    for colluders in range(clients - 1):
        terms = Terms.usual("test", 1, 4, 8, clients, colluders)
        assert colluders < terms.threshold < terms.survivors
    with pytest.raises(OptionError):
        Terms.usual("test", 1, 4, 8, clients, clients - 1)


def test_terms_that_would_let_two_halves_meet_are_refused() -> None:
    with pytest.raises(OptionError, match="more than half"):
        replace(FOUR, neighbours=3, threshold=1)
    with pytest.raises(OptionError, match="survivors=2"):
        replace(FOUR, survivors=2)
    with pytest.raises(OptionError, match="survivors=6"):
        replace(FOUR, clients=12, survivors=6)  # the other six could be told of another six
    with pytest.raises(OptionError, match="at least 3 clients"):
        Terms.usual("test", 1, 4, 8, clients=2, colluders=0)
    with pytest.raises(OptionError, match="modulo"):
        replace(FOUR, bits=33)
    assert Terms.decode(FOUR.encode()) == FOUR


def test_stages_out_of_order_are_refused() -> None:
    playing = Round()
    with pytest.raises(SecureSumError):
        playing.members[0].share(b"")
    playing.stage("advertise")
    with pytest.raises(SecureSumError, match="cannot follow"):
        playing.members[0].masked(Collected(frozenset(), {}).encode(), levels_of(0, FOUR))


def test_another_invitation_for_the_same_sum_is_refused() -> None:
    playing = Round()
    playing.stage("advertise")
    other = SecureSum(replace(FOUR, round=4), [0, 1, 2, 3]).invitations()[0]
    with pytest.raises(SecureSumError, match="stage 1"):
        playing.members[0].advertise(other)


def test_forged_keys_are_refused() -> None:
    playing = Round()
    told = Neighbourhood.decode(playing.server.neighbourhoods(playing.stage("advertise"))[0])
    ring, keys, member = told.ring, dict(told.keys), playing.members[0]
    swapped = {0: ring[0], 1: ring[2], 2: ring[1], 3: ring[3]}
    for wrong in (
        Neighbourhood(ring, keys | {1: replace(keys[1], mask=keys[2].mask)}),
        Neighbourhood(ring, keys | {1: keys[2], 2: keys[1]}),
        Neighbourhood(swapped, keys | {1: keys[2], 2: keys[1]}),  # the keys of another client, in its place
        Neighbourhood({**ring, 2: ring[1]}, keys),
        Neighbourhood({**ring, 0: ring[1], 1: ring[0]}, keys),
        Neighbourhood({**ring, 9: bytes(32)}, keys),
        Neighbourhood({0: ring[0], 1: ring[1]}, {1: keys[1]}),
        Neighbourhood(ring, {1: keys[1], 2: keys[2]}),
    ):
        with pytest.raises(SecureSumError):
            member.share(wrong.encode())
    pinned = Member(node(0), {1: bytes(32)}, member.secret)
    pinned.advertise(playing.requests[0])
    with pytest.raises(StrangerError) as refused:
        pinned.share(told.encode())
    assert refused.value.client == 1
    member.share(told.encode())


def test_keys_of_another_round_or_federation_are_refused() -> None:
    for terms in (replace(FOUR, round=4), replace(FOUR, federation="other")):
        elsewhere = Round(terms)
        old = {client: Advertised.decode(answer).keys for client, answer in elsewhere.stage("advertise").items()}
        playing = Round()
        told = Neighbourhood.decode(playing.server.neighbourhoods(playing.stage("advertise"))[0])
        with pytest.raises(SecureSumError):
            playing.members[0].share(Neighbourhood(told.ring, {**told.keys, 1: old[1]}).encode())


def test_shares_that_were_changed_swapped_or_kept_back_are_not_given() -> None:
    playing = Round()
    playing.requests = playing.server.neighbourhoods(playing.stage("advertise"))
    told = Collected.decode(playing.server.collected(playing.stage("share"))[0])
    for wrong in (
        Collected(told.shared, {1: told.sealed[1]}),
        Collected(told.shared - {3}, told.sealed),
        Collected(frozenset({0, 1}), {1: told.sealed[1]}),
        Collected(told.shared - {0}, told.sealed),
        Collected(told.shared | {9}, told.sealed),
    ):
        with pytest.raises(SecureSumError):
            playing.members[0].masked(wrong.encode(), levels_of(0, FOUR))


def test_wrong_shares_are_noticed() -> None:
    """A neighbour that lies about its shares cannot make a wrong sum: the others' shares do, or there is none."""
    for liars in (1, 2, 3):
        playing = until_unmasking()
        answers = playing.stage("unmask")
        for liar in range(liars):
            shares = dict(Unmasking.decode(answers[liar]).shares)
            answers[liar] = Unmasking({client: bytes([0]) * 33 for client in shares}).encode()
        try:
            result = playing.server.result(answers)
        except SecureSumError as error:
            assert liars > 1, error  # noqa: PT017
        else:
            np.testing.assert_array_equal(result.levels, sum(levels_of(client, FOUR) for client in range(4)))


def test_hostile_answers_are_refused_by_name() -> None:
    playing = Round()
    answers = playing.stage("advertise")
    damaged = bytes([*answers[3][:-1], answers[3][-1] ^ 1])
    playing.server.neighbourhoods(answers | {3: damaged})
    assert [client for client, _ in playing.refused] == [3]
    assert not playing.server.add(3, b"nothing")
    with pytest.raises(WireError):
        Neighbourhood.decode(answers[0])
