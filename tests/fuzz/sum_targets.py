"""Secure sums in which one message of one client, or one request to it, was changed on its way."""

from __future__ import annotations

import hashlib
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from forging import forge_secure, reframed
from sound_messages import broadcast, new_client, scratch, secure_messages, store_after_two_rounds

from fedsparq.errors import SecureSumError, WireError
from fedsparq.federate.masked import MaskedClient, is_masked
from fedsparq.payload.frame import pack_frame
from fedsparq.secure import Member, SecureSum, Terms
from fedsparq.secure.keys import NodeKey

BAD, CLIENTS = 2, 4
STAGES = ("advertise", "share", "masked", "confirm", "unmask")
TERMS = Terms.usual("test", 1, 4, 12, CLIENTS, colluders=1)


@cache
def _node(client: int) -> NodeKey:
    return NodeKey(bytes([client + 1]) * 32)


def _changed(message: bytes, rng: np.random.Generator) -> bytes:
    """A message of the same kind, with a checksum that holds."""
    from mutations import mutate

    made = mutate(message, message, rng) or b"\0"
    return reframed(made, "Q") if rng.random() < 0.9 else made


def check_sum(data: bytes) -> bool:
    """The sum of whoever is in it, or none: nothing else is raised. The first byte 0: nothing is changed."""
    rng = np.random.default_rng(list(hashlib.sha256(data).digest()))
    stage, asked = STAGES[int(rng.integers(len(STAGES)))] if data[0] else "", rng.random() < 0.4
    members = {client: Member(_node(client), {}) for client in range(CLIENTS)}
    server = SecureSum(TERMS, list(members), lambda client, reason: None, set())

    def answers(name: str, requests: dict[int, bytes]) -> dict[int, bytes]:
        said: dict[int, bytes] = {}
        for client, request in requests.items():
            more: tuple[Any, ...] = (np.full(4, 10**client),) if name == "masked" else ()
            hit = client == BAD and name == stage
            try:
                answer = getattr(members[client], name)(_changed(request, rng) if hit and asked else request, *more)
            except WireError:
                continue
            said[client] = _changed(answer, rng) if hit and not asked else answer
        return said

    try:
        requests = server.collected(answers("share", server.neighbourhoods(answers("advertise", server.invitations()))))
        for client, answer in answers("masked", requests).items():
            server.add(client, answer)
        requests = server.confirmations(answers("confirm", server.survivors()))
        found = server.result(answers("unmask", requests))
    except SecureSumError:
        return False
    if stage != "masked":  # there it may say any levels
        assert found.levels.tolist() == [sum(10**client for client in found.clients) % 2**12] * 4
    return BAD in found.clients


def seeds() -> tuple[bytes, ...]:
    return tuple(bytes([number]) * 8 for number in range(40))


def requests() -> tuple[bytes, ...]:
    """To a client in rounds under masks: sound requests of every stage, most of them not for it."""
    plain = broadcast(3).encode()
    return (*secure_messages(), pack_frame("T", b"", (plain, secure_messages()[4])), plain)


def forge_request(data: bytes) -> bytes:
    return reframed(data, "T") if data[3:4] == b"T" else forge_secure(data)


def check_request(data: bytes) -> bool:
    """A client that was invited answers, or says in a remark why not."""
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        client = MaskedClient(new_client(store_after_two_rounds()), Path(folder))
        assert client.answer(secure_messages()[0]).message is not None
        return client.answer(data).message is not None and is_masked(data)
