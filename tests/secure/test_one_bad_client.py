"""One client that misbehaves at any stage: the sum of the others, or one aborted round and a sum in the next."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fedsparq.errors import SecureSumError
from fedsparq.secure import Member, SecureSum, Terms
from fedsparq.secure.client import StrangerError
from fedsparq.secure.keys import NodeKey, digest
from fedsparq.secure.messages import Accusation, Advertised, Confirmed, Masked, Shared, Unmasking
from fedsparq.secure.server import Sum

TERMS = Terms("test", 1, 4, 12, clients=6, threshold=3, survivors=5, neighbours=5)
BAD = 2
STAGES = ("advertise", "share", "masked", "confirm", "unmask")

Tamper = Callable[[Member, bytes], bytes]
"""What the bad client sends in place of its answer."""


def node(client: int) -> NodeKey:
    return NodeKey(bytes([client + 1]) * 32)


def play(
    number: int,
    left_out: set[int],
    stage: str = "",
    tamper: Tamper | None = None,
    known: dict[int, bytes] | None = None,
) -> tuple[SecureSum, Sum | None, set[int]]:
    """A sum in which client BAD tampers with its answer of one stage; the server, the sum, and who was refused."""
    terms, refused = replace(TERMS, round=number), set[int]()
    members = {client: Member(node(client), known if client != BAD and known else {}) for client in range(6)}
    server = SecureSum(terms, list(members), lambda client, reason: refused.add(client), left_out)

    def answers(name: str, requests: dict[int, bytes]) -> dict[int, bytes]:
        said = {}
        for client, request in requests.items():
            more = (np.full(4, 10**client % 997),) if name == "masked" else ()
            try:
                said[client] = getattr(members[client], name)(request, *more)
            except StrangerError as error:
                said[client] = Accusation(error.client).encode()
            except SecureSumError:
                assert client == BAD
                continue
            if client == BAD and name == stage and tamper:
                said[client] = tamper(members[client], said[client])
        return said

    try:
        requests = server.collected(answers("share", server.neighbourhoods(answers("advertise", server.invitations()))))
        for client, answer in answers("masked", requests).items():
            server.add(client, answer)
        requests = server.confirmations(answers("confirm", server.survivors()))
        return server, server.result(answers("unmask", requests)), refused
    except SecureSumError:
        return server, None, refused


def keys(**changes: bytes) -> Tamper:
    """Other keys, signed as they should be."""

    def tamper(member: Member, answer: bytes) -> bytes:
        made = replace(Advertised.decode(answer).keys, **changes)
        signed = replace(made, signature=member.node.sign(made.signed_text(member.terms, BAD)))
        return Advertised(replace(signed, **changes)).encode()

    return tamper


def of_another_node(member: Member, answer: bytes) -> bytes:
    made = replace(Advertised.decode(answer).keys, node=node(1).public)
    return Advertised(replace(made, signature=node(1).sign(made.signed_text(member.terms, BAD)))).encode()


def sealed(change: Callable[[bytes], bytes]) -> Tamper:
    return lambda _, answer: Shared({c: change(text) for c, text in Shared.decode(answer).sealed.items()}).encode()


def shares(change: Callable[[bytes], bytes]) -> Tamper:
    return lambda _, answer: Unmasking({c: change(s) for c, s in Unmasking.decode(answer).shares.items()}).encode()


def unsigned(member: Member, answer: bytes) -> bytes:
    return replace(Masked.decode(answer), signature=bytes(64)).encode()


def too_short(member: Member, answer: bytes) -> bytes:
    return replace(Masked.decode(answer), data=b"short").encode()


GOES_ON = {
    "bad signature": ("advertise", keys(signature=bytes(64))),
    "mask key of low order": ("advertise", keys(mask=bytes(32))),
    "cipher key of low order": ("advertise", keys(cipher=bytes(32))),
    "no node key": ("advertise", keys(node=bytes(32))),
    "another client's node": ("advertise", of_another_node),
    "shares for some": ("share", lambda _, a: Shared(dict(list(Shared.decode(a).sealed.items())[1:])).encode()),
    "an accusation": ("share", lambda _, answer: Accusation(0).encode()),
    "numbers too short": ("masked", too_short),
    "numbers unsigned": ("masked", unsigned),
    "another story": ("confirm", lambda _, answer: Confirmed(bytes(64)).encode()),
    "shares that are none": ("unmask", shares(lambda share: bytes(33))),
    "shares beyond the prime": ("unmask", shares(lambda share: bytes([255]) * 33)),
    "shares slightly off": ("unmask", shares(lambda share: share[:-1] + bytes([share[-1] ^ 1]))),
    "no shares": ("unmask", lambda _, answer: Unmasking({}).encode()),
    "shares of nobody": ("unmask", lambda _, answer: Unmasking({77: bytes(33)}).encode()),
} | {f"rubbish at {stage}": (stage, lambda _, answer: b"rubbish") for stage in STAGES}

ABORTS = {
    "another commitment": ("advertise", keys(commitment=digest(b"else"))),
    "shares that nobody can read": ("share", sealed(lambda text: bytes(len(text)))),
    "shares changed at the end": ("share", sealed(lambda text: text[:-1] + bytes([text[-1] ^ 1]))),
}


def expected(clients: tuple[int, ...]) -> list[int]:
    return [sum(10**client % 997 for client in clients)] * 4


@pytest.mark.parametrize("what", GOES_ON)
def test_the_sum_goes_on(what: str) -> None:
    stage, tamper = GOES_ON[what]
    server, result, refused = play(1, set(), stage, tamper)
    assert result is not None
    assert set(result.clients) >= set(range(6)) - {BAD}
    assert (BAD in result.clients) == (stage in ("confirm", "unmask"))
    assert result.levels.tolist() == expected(result.clients)
    assert refused <= {BAD}
    assert not server.offenders


@pytest.mark.parametrize("what", ABORTS)
def test_one_round_is_aborted_and_the_next_goes_on(what: str) -> None:
    server, result, _ = play(1, set(), *ABORTS[what])
    assert (result, server.offenders) == (None, {BAD})
    server, result, _ = play(2, server.offenders, *ABORTS[what])
    assert result is not None
    assert result.clients == (0, 1, 3, 4, 5)
    assert result.levels.tolist() == expected(result.clients)


def test_a_client_whose_key_is_not_the_one_known_stops_one_round() -> None:
    server, result, _ = play(1, set(), known={BAD: bytes(32)})
    assert (result, server.offenders) == (None, {BAD})
    _, result, _ = play(2, server.offenders, known={BAD: bytes(32)})
    assert result is not None
    assert result.clients == (0, 1, 3, 4, 5)


def test_wrong_shares_are_named() -> None:
    _, _, refused = play(1, set(), *GOES_ON["shares slightly off"])
    assert refused == {BAD}
