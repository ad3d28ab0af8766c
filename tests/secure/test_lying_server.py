"""A server that lies to each client about who is alive, without clients of its own: nothing in clear."""

import numpy as np
import pytest

from fedsparq.secure import Member, SecureSum, Terms, masks, shamir
from fedsparq.secure.client import pairwise
from fedsparq.secure.keys import Agreement, NodeKey
from fedsparq.secure.messages import Advertised, Collected, Masked, Neighbourhood, Survivors, Unmasking


@pytest.mark.xfail(strict=True, reason="clients do not compare which clients they were told are alive")
@pytest.mark.parametrize("clients", [6, 8, 10, 12, 20, 33, 34, 100])
def test_two_stories_do_not_unmask_a_client(clients: int) -> None:
    terms = Terms.usual("test", 1, 8, 16, clients)
    members = {client: Member(NodeKey(client.to_bytes(32, "big"))) for client in range(clients)}
    server = SecureSum(terms, list(members))
    said = {client: members[client].advertise(request) for client, request in server.invitations().items()}
    keys = {client: Advertised.decode(answer).keys for client, answer in said.items()}
    requests = server.neighbourhoods(said)
    near = {client: set(Neighbourhood.decode(request).keys) for client, request in requests.items()}
    requests = server.collected({client: members[client].share(request) for client, request in requests.items()})
    target, secret = 0, np.arange(-4, 4)
    heard = dict(list(Collected.decode(requests[target]).sealed.items())[: terms.threshold])
    requests[target] = Collected(heard).encode()
    sent = {client: members[client].masked(request, secret) for client, request in requests.items()}
    shares: dict[int, dict[int, bytes]] = {client: {} for client in heard}
    seeds = {}
    for client in sorted(near.keys() - {target}):
        wanted = sorted(heard.keys() & near[client], key=lambda other: len(shares[other]))
        dead = frozenset(wanted[: len(near[client]) - terms.threshold])
        answer = members[client].unmask(Survivors(frozenset(near[client] - dead), dead).encode())
        given = Unmasking.decode(answer).shares
        for other in dead:
            shares[other][client + 1] = given[other]
        if target in given:
            seeds[client + 1] = given[target]
    words = masks.unpack(Masked.decode(sent[target]).data, terms.length, terms.bits)
    words -= masks.mask(shamir.join(dict(list(seeds.items())[: terms.threshold])), terms.length, terms.bits)
    for other in heard:
        private = Agreement(shamir.join(dict(list(shares[other].items())[: terms.threshold])))
        words += pairwise(private, keys[target].mask, terms, other, target)
    clear = masks.lifted(words & np.uint32(2**terms.bits - 1), terms.bits)
    assert not np.array_equal(clear, secret)
