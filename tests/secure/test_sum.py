"""Secure sums, whole: every way to drop out gives the exact sum or none, and no message gives away more than a sum."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from fedsparq.errors import OptionError, SecureSumError, WireError
from fedsparq.secure import Member, SecureSum, Terms
from fedsparq.secure.keys import NodeKey
from fedsparq.secure.messages import Advertised, Collected, Neighbourhood, Survivors, Unmasking
from fedsparq.secure.server import Sum, ring

FOUR = Terms("test", 3, length=5, bits=11, clients=4, threshold=2, survivors=3, neighbours=3)
STAGES = ("advertise", "share", "masked", "unmask")


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
        """`dropped` says for each client at which stage it no longer answers; 4: it answers all."""
        last = dropped or (4,) * self.terms.clients

        def there(stage: int) -> dict[int, bool]:
            return {client: last[client] > stage for client in range(self.terms.clients)}

        self.requests = self.server.neighbourhoods(self.stage("advertise", there(0)))
        self.requests = self.server.collected(self.stage("share", there(1)))
        for client, answer in self.stage("masked", there(2)).items():
            assert self.server.add(client, answer)
        self.requests = self.server.survivors()
        return self.server.result(self.stage("unmask", there(3)))


def test_every_way_to_drop_out_gives_the_exact_sum_or_none() -> None:
    sums = 0
    for dropped in product(range(5), repeat=4):
        alive = [client for client in range(4) if dropped[client] > 2]
        unmasking = [client for client in alive if dropped[client] > 3]
        try:
            result = Round().play(dropped)
        except SecureSumError:
            # too few, or some secret has fewer shares left than the threshold
            assert len(alive) < 3 or any(len(set(unmasking) - {client}) < 2 for client in range(4))
            continue
        sums += 1
        assert result.clients == tuple(alive)
        np.testing.assert_array_equal(result.levels, sum(levels_of(client, FOUR) for client in alive))
    assert sums == 1 + 4 * 4  # nobody drops out; or one of four does, at one of four stages


def test_on_a_ring_of_neighbours() -> None:
    terms = Terms("test", 1, length=3, bits=16, clients=12, threshold=5, survivors=7, neighbours=8)
    dropped = (4, 4, 2, 4, 4, 4, 4, 1, 4, 4, 3, 0)
    result = Round(terms).play(dropped)
    assert result.clients == (0, 1, 3, 4, 5, 6, 8, 9, 10)
    np.testing.assert_array_equal(result.levels, sum(levels_of(client, terms) for client in result.clients))


def test_a_ring_is_regular_and_mutual() -> None:
    near = ring([5, 3, 8, 1, 9, 2, 7], 4)
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
    result = playing.server.result({c: playing.members[c].unmask(requests[c]) for c in requests})
    np.testing.assert_array_equal(result.levels, 4 * largest)


def until_unmasking() -> Round:
    playing = Round()
    playing.requests = playing.server.neighbourhoods(playing.stage("advertise"))
    playing.requests = playing.server.collected(playing.stage("share"))
    for client, answer in playing.stage("masked").items():
        playing.server.add(client, answer)
    playing.requests = playing.server.survivors()
    return playing


def test_a_curious_server_never_gets_both_shares_of_a_client() -> None:
    playing = until_unmasking()
    member = playing.members[0]
    with pytest.raises(SecureSumError, match="alive and dead"):
        member.unmask(Survivors(frozenset({1, 2, 3}), frozenset({3})).encode())
    with pytest.raises(SecureSumError, match="just the neighbours"):
        member.unmask(Survivors(frozenset({1, 2}), frozenset()).encode())
    with pytest.raises(SecureSumError, match="fewer than 2"):
        member.unmask(Survivors(frozenset({1}), frozenset({2, 3})).encode())
    first = member.unmask(Survivors(frozenset({1, 2}), frozenset({3})).encode())
    assert member.unmask(Survivors(frozenset({1, 2}), frozenset({3})).encode()) == first
    with pytest.raises(SecureSumError, match="which was answered"):
        member.unmask(Survivors(frozenset({1, 2, 3}), frozenset()).encode())


def test_whatever_it_asks_its_clients_a_server_cannot_put_both_secrets_together() -> None:
    """It tells each of client 3's neighbours something else; of both kinds together it gets one share a neighbour."""
    for lies in product([True, False], repeat=3):
        playing = until_unmasking()
        kinds = []
        for client, alive in enumerate(lies):
            near = frozenset(range(4)) - {client}
            request = Survivors(near if alive else near - {3}, frozenset() if alive else frozenset({3}))
            kinds.append((alive, Unmasking.decode(playing.members[client].unmask(request.encode())).shares[3]))
        assert min(sum(alive for alive, _ in kinds), sum(not alive for alive, _ in kinds)) < FOUR.threshold


def test_terms_that_would_let_two_halves_meet_are_refused() -> None:
    with pytest.raises(OptionError, match="more than half"):
        replace(FOUR, neighbours=3, threshold=1)
    with pytest.raises(OptionError, match="survivors"):
        replace(FOUR, survivors=2)
    with pytest.raises(OptionError, match="at least 3 clients"):
        Terms.usual("test", 1, 4, 8, clients=2)
    with pytest.raises(OptionError, match="modulo"):
        replace(FOUR, bits=33)
    assert Terms.decode(FOUR.encode()) == FOUR


def test_stages_out_of_order_are_refused() -> None:
    playing = Round()
    with pytest.raises(SecureSumError):
        playing.members[0].share(b"")
    playing.stage("advertise")
    with pytest.raises(SecureSumError, match="cannot follow"):
        playing.members[0].masked(Collected({}).encode(), levels_of(0, FOUR))


def test_another_invitation_for_the_same_sum_is_refused() -> None:
    playing = Round()
    playing.stage("advertise")
    other = SecureSum(replace(FOUR, round=4), [0, 1, 2, 3]).invitations()[0]
    with pytest.raises(SecureSumError, match="stage 1"):
        playing.members[0].advertise(other)


def test_forged_keys_are_refused() -> None:
    playing = Round()
    answers = playing.stage("advertise")
    requests = playing.server.neighbourhoods(answers)
    keys = dict(Neighbourhood.decode(requests[0]).keys)
    forged = replace(keys[1], mask=keys[2].mask)
    with pytest.raises(SecureSumError, match="not signed"):
        playing.members[0].share(Neighbourhood(keys | {1: forged}).encode())
    with pytest.raises(SecureSumError, match="not signed"):  # the keys of another client, in its place
        playing.members[0].share(Neighbourhood(keys | {1: keys[2], 2: keys[1]}).encode())
    impostor = Member(NodeKey(bytes([99]) * 32))
    impostor.advertise(playing.requests[1])
    theirs = Advertised.decode(impostor.answers[1]).keys
    pinned = Member(node(0), {1: node(1).public}, playing.members[0].secret)
    pinned.advertise(playing.requests[0])
    with pytest.raises(SecureSumError, match="another node's key"):
        pinned.share(Neighbourhood(keys | {1: theirs}).encode())
    with pytest.raises(SecureSumError, match="several neighbours"):
        playing.members[0].share(Neighbourhood({1: keys[1], 2: keys[1]}).encode())


def test_keys_of_another_round_or_federation_are_refused() -> None:
    for terms in (replace(FOUR, round=4), replace(FOUR, federation="other")):
        elsewhere = Round(terms)
        old = {client: Advertised.decode(answer).keys for client, answer in elsewhere.stage("advertise").items()}
        playing = Round()
        playing.stage("advertise")
        with pytest.raises(SecureSumError, match="not signed"):
            playing.members[0].share(Neighbourhood({1: old[1], 2: old[2]}).encode())


def test_changed_and_swapped_shares_are_refused() -> None:
    playing = Round()
    playing.requests = playing.server.neighbourhoods(playing.stage("advertise"))
    requests = playing.server.collected(playing.stage("share"))
    sealed = dict(Collected.decode(requests[0]).sealed)
    broken = bytes([sealed[1][0] ^ 1]) + sealed[1][1:]
    for wrong in (sealed | {1: broken}, sealed | {1: sealed[2], 2: sealed[1]}):
        with pytest.raises(SecureSumError, match="changed on its way"):
            playing.members[0].masked(Collected(wrong).encode(), levels_of(0, FOUR))
    with pytest.raises(SecureSumError, match="at least 2"):
        playing.members[0].masked(Collected({1: sealed[1]}).encode(), levels_of(0, FOUR))


def test_wrong_shares_are_noticed() -> None:
    """A neighbour that lies about its shares cannot make a wrong sum: the others' shares do, or there is none."""
    for liars in (1, 2):
        playing = until_unmasking()
        answers = playing.stage("unmask")
        for liar in range(liars):
            shares = dict(Unmasking.decode(answers[liar]).shares)
            answers[liar] = Unmasking({client: bytes([0]) * 33 for client in shares}).encode()
        try:
            result = playing.server.result(answers)
        except SecureSumError as error:
            assert "not those it gave" in str(error)  # noqa: PT017
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
