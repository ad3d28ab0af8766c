"""Rounds under masks: the server learns the sum of its clients' levels, and no client's own.

A round has five exchanges instead of one. The third carries the broadcast and brings the masked levels; the reply as it
would be without masks stays with the client until a later broadcast acknowledges it. A sum that cannot be made
acknowledges nobody, so nothing is lost.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsparq.archive import exclusive, write_safely
from fedsparq.errors import SecureSumError, WireError
from fedsparq.federate.client import Answer, Client
from fedsparq.federate.messages import Broadcast, Reply, reply_digest
from fedsparq.federate.rounds import Delivery, Traffic
from fedsparq.federate.server import RoundOutcome, Server
from fedsparq.payload.frame import frame_kind, pack_frame, read_frame
from fedsparq.payload.support import levels_on
from fedsparq.privacy.skellam import skellam
from fedsparq.secure import Member, SecureSum, Terms
from fedsparq.secure.client import StrangerError
from fedsparq.secure.keys import NodeKey
from fedsparq.secure.messages import Accusation, Invitation, Masked, Neighbourhood, Survivors, kind_of
from fedsparq.wire import decode

_MEMBER = "member.safetensors"

AskMasked = Callable[[Mapping[int, bytes]], Iterable[Delivery]]
"""Sends each client its own request, and gives the answers as they come."""


def is_masked(message: bytes) -> bool:
    """Whether a message is a request of a round under masks."""
    return frame_kind(message) == "T" or kind_of(message) % 2 == 1


@dataclass(frozen=True)
class MaskedClient:
    """A client in rounds under masks. Its secrets are in a folder of its own, for its eyes only.

    `keys` is where its node's key is, and the public keys by which it knows the other nodes: one folder for all runs
    of a node, or `folder` where none is given. Keys that were put into its `known.json` before are held to as well.
    """

    client: Client
    folder: Path
    keys: Path | None = None

    def answer(self, message: bytes) -> Answer:
        """The answer to a request of any stage; none, with a remark, to one that cannot or must not be answered.

        The folder is locked from reading the secrets to saving them: of two requests at once, the second one finds
        what was answered to the first.
        """
        with exclusive(self.folder):
            return self._answer(message)

    def _answer(self, message: bytes) -> Answer:
        try:
            if kind_of(message) == Invitation.kind:
                member = self._invited(Invitation.decode(message))
                sent = member.advertise(message)
            else:
                member = self._member()
                if frame_kind(message) == "T":
                    return self._trained(member, message)
                stages = {Neighbourhood.kind: member.share, Survivors.kind: member.confirm}
                sent = stages.get(kind_of(message), member.unmask)(message)
        except StrangerError as error:
            accusation = Accusation(error.client).encode()
            return Answer(accusation, (str(error),), len(accusation))
        except WireError as error:
            return Answer(None, (str(error),))
        self._save(member)
        return Answer(sent, (), len(sent))

    def _trained(self, member: Member, message: bytes) -> Answer:
        broadcast_bytes, collected = _untrain(message)
        broadcast = Broadcast.decode(broadcast_bytes)
        if broadcast.round != member.terms.round:
            raise SecureSumError(f"a broadcast of round {broadcast.round} in a sum of round {member.terms.round}")
        plan, layout = broadcast.plan, self.client.layout
        if plan is None or plan.support is None or layout is None:
            raise SecureSumError("a broadcast of a secure sum has no support in its plan")
        answer = self.client.answer(broadcast_bytes, secrets.token_bytes(16))
        if answer.message is None:
            return answer
        reply = Reply.decode(answer.message)
        levels = levels_on(plan.support.indices(layout.size), np.float32(plan.step), decode(reply.blob, layout))
        if plan.variance:
            levels = levels + skellam(plan.variance, levels.size)
        digest = reply_digest(answer.message).to_bytes(8, "little")
        sent = member.masked(collected, levels, digest)
        self._save(member)
        return Answer(sent, answer.remarks, len(sent), answer.train_seconds, answer.compress_seconds)

    def _invited(self, invitation: Invitation) -> Member:
        if self._path.exists():
            member = self._member()
            if member.terms.round > invitation.terms.round:
                raise SecureSumError(f"an invitation to round {invitation.terms.round} is out of date")
            if member.terms.round == invitation.terms.round:
                return member
        return Member(NodeKey(self._node_key()), self._known())

    def _member(self) -> Member:
        try:
            return Member.decode(self._path.read_bytes())
        except OSError:
            raise SecureSumError("this client takes part in no sum") from None

    def _save(self, member: Member) -> None:
        write_safely(self._path, member.encode(), private=True)
        if 2 in member.requests:
            with self._keys_locked():
                known = {**member.ring.nodes} | self._known()
                text = json.dumps({str(client): node.hex() for client, node in sorted(known.items())})
                write_safely(self._keys / "known.json", text.encode(), private=True)

    def _known(self) -> dict[int, bytes]:
        path = self._keys / "known.json"
        if not path.exists():
            return {}
        try:
            return {int(client): bytes.fromhex(node) for client, node in json.loads(path.read_text()).items()}
        except (ValueError, AttributeError, TypeError) as error:
            raise SecureSumError(f'{path} is not {{"0": "a node\'s public key in hex", ...}}: {error}') from None

    def _node_key(self) -> bytes:
        path = self._keys / "node.key"
        with self._keys_locked():
            if not path.exists():
                write_safely(path, os.urandom(32), private=True)
                write_safely(self._keys / "node.pub", NodeKey(path.read_bytes()).public.hex().encode(), private=True)
            return path.read_bytes()

    def _keys_locked(self) -> AbstractContextManager[None]:
        """Several runs of a node share its keys. Where they are in `folder`, that is locked already."""
        return nullcontext() if self.keys is None else exclusive(self.keys)

    @property
    def _keys(self) -> Path:
        return self.keys or self.folder

    @property
    def _path(self) -> Path:
        return self.folder / _MEMBER


def forget_sums(states: Path) -> None:
    """Remove what clients of this machine keep of a sum under way, whose replies are forgotten too: the round is asked
    again as a new one. Their nodes' keys stay."""
    for path in states.glob(f"secrets-*/{_MEMBER}"):
        path.unlink()


def play_masked(
    server: Server, terms: Terms, clients: list[int], ask: AskMasked, traffic: Traffic, offenders: set[int]
) -> RoundOutcome:
    """A whole round under masks: the sum of all who stayed counts, or nobody.

    `offenders` are clients that have spoiled a sum. They are left out, and those of this round are added to them.
    """
    server.open_round(clients)
    total = SecureSum(terms, clients, lambda client, reason: server.note(client, f"refused: {reason}"), offenders)
    for client in sorted(offenders.intersection(clients)):
        server.note(client, "left out: it has spoiled a secure sum of this run")
    try:
        answers = _answers(server, ask, total.invitations(), traffic)
        answers = _answers(server, ask, total.neighbourhoods(answers), traffic)
        collected = total.collected(answers)
        answers = _answers(server, ask, {c: _train(server.broadcast(c), collected[c]) for c in collected}, traffic)
        digests = {c: Masked.decode(answers[c]).digest for c in answers if total.add(c, answers[c])}
        answers = _answers(server, ask, total.survivors(), traffic)
        result = total.result(_answers(server, ask, total.confirmations(answers), traffic))
        server.receive_sum(result.levels, {c: int.from_bytes(digests[c], "little") for c in result.clients})
    except SecureSumError as error:
        server.note(-1, f"no sum was made: {error}")
    offenders |= total.offenders
    return server.close_round()


def _answers(server: Server, ask: AskMasked, requests: Mapping[int, bytes], traffic: Traffic) -> dict[int, bytes]:
    """The answers that came to the requests of a stage."""
    answers = {}
    traffic.down += sum(map(len, requests.values()))
    for delivery in ask(requests):
        traffic.add(server, delivery)
        if delivery.answer.message is not None:
            answers[delivery.client] = delivery.answer.message
    return answers


def _train(broadcast: bytes, collected: bytes) -> bytes:
    """The third request: a broadcast, and what the neighbors shared."""
    return pack_frame("T", b"", (broadcast, collected))


def _untrain(message: bytes) -> tuple[bytes, bytes]:
    blobs = read_frame(message, "T").blobs
    if len(blobs) != 2:
        raise WireError(f"a request for a masked reply has 2 blobs, not {len(blobs)}")
    return blobs[0], blobs[1]
