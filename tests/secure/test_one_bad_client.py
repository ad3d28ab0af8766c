"""One client that misbehaves at any stage: the sum of the others, or one aborted round and a sum in the next."""

from dataclasses import replace

import numpy as np
import pytest

from fedsparq.secure import Member, SecureSum, Terms
from fedsparq.secure.keys import NodeKey
from fedsparq.secure.messages import Advertised

TERMS = Terms("test", 1, 4, 12, clients=6, threshold=3, survivors=5, neighbours=5)
BAD = 2


@pytest.mark.xfail(strict=True, reason="the server passes keys on without a look at them")
@pytest.mark.parametrize("what", ["signature", "mask", "cipher", "node"])
def test_bad_keys_leave_their_client_out(what: str) -> None:
    members = {client: Member(NodeKey(bytes([client + 1]) * 32)) for client in range(6)}
    server = SecureSum(TERMS, list(members))
    said = {client: members[client].advertise(request) for client, request in server.invitations().items()}
    keys = Advertised.decode(said[BAD]).keys
    keys = replace(keys, **{what: bytes(len(getattr(keys, what)))})  # X25519: a key of low order
    if what != "signature":
        keys = replace(keys, signature=members[BAD].node.sign(keys.signed_text(TERMS, BAD)))
    requests = server.neighbourhoods(said | {BAD: Advertised(keys).encode()})
    requests = server.collected({client: members[client].share(request) for client, request in requests.items()})
    for client, request in requests.items():
        assert server.add(client, members[client].masked(request, np.full(4, client)))
    result = server.result({client: members[client].unmask(r) for client, r in server.survivors().items()})
    assert result.clients == (0, 1, 3, 4, 5)


@pytest.mark.xfail(strict=True, reason="one wrong share in the middle spoils every run of shares")
def test_wrong_shares_of_one_client_do_not_stop_the_sum() -> None:
    from fedsparq.secure.messages import Unmasking

    members = {client: Member(NodeKey(bytes([client + 1]) * 32)) for client in range(6)}
    server = SecureSum(TERMS, list(members))
    requests = server.neighbourhoods({c: members[c].advertise(r) for c, r in server.invitations().items()})
    requests = server.collected({client: members[client].share(request) for client, request in requests.items()})
    for client, request in requests.items():
        server.add(client, members[client].masked(request, np.full(4, client)))
    answers = {client: members[client].unmask(request) for client, request in server.survivors().items()}
    answers[BAD] = Unmasking(dict.fromkeys(Unmasking.decode(answers[BAD]).shares, bytes(33))).encode()
    assert server.result(answers).levels.tolist() == [15] * 4
