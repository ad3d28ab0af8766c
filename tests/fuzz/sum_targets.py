"""Secure sums in which one message of one client, or one request to it, was changed on its way."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import numpy as np
from forging import frame_holds, reframed
from sound_messages import resolved, scratch

from fedsparq import Layout, method
from fedsparq.errors import SecureSumError, WireError
from fedsparq.federate.client import Client, Trained
from fedsparq.federate.masked import MaskedClient, is_masked, play_masked
from fedsparq.federate.model import Model
from fedsparq.federate.rounds import Delivery, Traffic
from fedsparq.federate.server import Server
from fedsparq.federate.store import MemoryStore
from fedsparq.payload.frame import frame_kind, pack_frame, read_frame
from fedsparq.secure import Member, SecureSum, Terms
from fedsparq.secure.keys import NodeKey
from fedsparq.secure.messages import kind_of

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


LAYOUT = Layout.of({"a": (6, 5), "b": (10,)})
METHOD = method("fedsparq-private", fraction=0.5, top=50)


def _client(number: int, folder: Path, store: MemoryStore) -> MaskedClient:
    update = np.random.default_rng(number).normal(0, 0.05, LAYOUT.size).astype(np.float32)
    return MaskedClient(Client(number, LAYOUT, lambda *_: Trained(update, 10), store, resolved), folder)


@cache
def _asked() -> dict[int, tuple[bytes, Path, MemoryStore]]:
    """What a client is asked in its second round under masks, and its secrets and state before that, by stage."""
    made, folder = Server(LAYOUT, METHOD, Model(np.zeros(LAYOUT.size, np.float32))), Path(mkdtemp(dir=scratch()))
    stores, found = [MemoryStore() for _ in range(CLIENTS)], dict[int, tuple[bytes, Path, MemoryStore]]()
    clients = [_client(number, folder / f"{number}", store) for number, store in enumerate(stores)]

    def ask(requests: Mapping[int, bytes]) -> list[Delivery]:
        kept, store = Path(mkdtemp(dir=folder)), stores[BAD]
        if clients[BAD].folder.exists():
            copytree(clients[BAD].folder, kept, dirs_exist_ok=True)
        found[_stage(requests[BAD])] = requests[BAD], kept, MemoryStore({**store.states}, {**store.held})
        return [Delivery(client, clients[client].answer(request)) for client, request in requests.items()]

    for number in (1, 2):
        terms = Terms.usual("test", number, 20, 12, CLIENTS, colluders=1)
        assert len(play_masked(made, terms, list(range(CLIENTS)), ask, Traffic(), set()).counted) == CLIENTS
    return found


def _stage(request: bytes) -> int:
    return 5 if frame_kind(request) == "T" else kind_of(request)


def requests() -> tuple[bytes, ...]:
    """To a client in a round under masks: one of each stage."""
    return tuple(request for request, _, _ in _asked().values())


def forge_request(data: bytes) -> bytes:
    if data[3:4] != b"T":
        return reframed(data, "Q")
    broadcast, *collected = read_frame(reframed(data, "T"), "T").blobs or (b"",)
    return pack_frame("T", b"", [reframed(broadcast, "B"), *(reframed(each, "Q") for each in collected)])


def request_holds(data: bytes) -> bool:
    return frame_holds(data, "T", "Q")


def check_request(data: bytes) -> bool:
    """A client that has answered the stages before answers, or says in a remark why not."""
    if not is_masked(data):
        return False
    _, before, store = _asked().get(_stage(data), _asked()[1])
    with TemporaryDirectory(dir=scratch()) as folder:
        copytree(before, folder, dirs_exist_ok=True)
        answer = _client(BAD, Path(folder), MemoryStore({**store.states}, {**store.held})).answer(data)
        assert answer.message or answer.remarks
        return answer.message is not None
