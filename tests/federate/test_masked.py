"""Rounds under masks: who is in the sum is acknowledged, who is not has lost nothing."""

import json
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest

from fedsparq import Layout, method
from fedsparq.federate.client import Answer, Client, Trained
from fedsparq.federate.masked import MaskedClient, is_masked, play_masked
from fedsparq.federate.messages import Broadcast, Reply, reply_digest
from fedsparq.federate.model import Model
from fedsparq.federate.rounds import Delivery, Traffic
from fedsparq.federate.server import Server
from fedsparq.federate.store import MemoryStore
from fedsparq.methods import resolver
from fedsparq.payload.frame import frame_kind, pack_frame, read_frame
from fedsparq.payload.support import RoundPlan
from fedsparq.secure import Terms
from fedsparq.secure.messages import Invitation, Survivors

LAYOUT = Layout.of({"a": (6, 5), "b": (10,)})
METHOD = method("fedsparq-private", fraction=0.5, top=50)
CLIENTS = 5


class Federation:
    """Five clients with fixed updates, and a server that sees sums alone."""

    def __init__(self, folder: Path, keys: Path | None = None) -> None:
        self.keys = keys
        self.server = Server(LAYOUT, METHOD, Model(np.zeros(LAYOUT.size, np.float32)))
        self.stores = [MemoryStore() for _ in range(CLIENTS)]
        self.trained = np.zeros((CLIENTS, LAYOUT.size))
        self.received = np.zeros(LAYOUT.size)
        self.clients = [self._client(number, folder) for number in range(CLIENTS)]
        self.stage = 0
        self.offenders: set[int] = set()

    def _client(self, number: int, folder: Path) -> MaskedClient:
        def train(model: Model, hook: object, round_number: int) -> Trained:
            update = np.random.default_rng([number, round_number]).normal(0, 0.05, LAYOUT.size).astype(np.float32)
            self.trained[number] += update
            return Trained(update, 10)

        own = Client(number, LAYOUT, train, self.stores[number], resolver())
        return MaskedClient(own, folder / f"{number}", self.keys and self.keys / f"{number}")

    def play(self, last: tuple[int, ...]) -> tuple[int, ...]:
        """A round in which each client answers this many stages; who counted."""
        self.stage = 0
        terms = Terms("test", self.server.state.round + 1, 20, 12, CLIENTS, threshold=3, survivors=4, neighbours=4)

        def ask(requests: dict[int, bytes]) -> list[Delivery]:
            self.stage += 1
            answers = {}
            for client, request in requests.items():
                assert is_masked(request)
                if last[client] >= self.stage:
                    answers[client] = self.clients[client].answer(request)
                    assert self.clients[client].answer(request).message == answers[client].message
            return [Delivery(client, answer) for client, answer in answers.items()]

        before = self.server.state.model.vector.astype(float)
        outcome = play_masked(self.server, terms, list(range(CLIENTS)), ask, Traffic(), self.offenders)
        self.received += len(outcome.counted) * (self.server.state.model.vector - before)
        return outcome.counted

    def owed(self) -> np.ndarray:
        """Residuals, and replies of which a client has not yet heard that they counted."""
        from fedsparq.wire import decode

        total = np.zeros(LAYOUT.size)
        for number, store in enumerate(self.stores):
            state = store.states.get(number)
            if state is None:
                continue
            total += state.compression.residual
            counted = self.server.state.counted.get(number)
            for reply in state.undecided:
                if counted is None or counted.digest != reply_digest(reply):
                    total += decode(Reply.decode(reply).blob, LAYOUT).dense()
        return total


def test_the_sum_of_all(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    for _ in range(4):
        assert federation.play((5,) * CLIENTS) == tuple(range(CLIENTS))
        np.testing.assert_allclose(federation.received + federation.owed(), federation.trained.sum(0), atol=1e-5)


def test_whoever_drops_out_whenever_loses_nothing(tmp_path: Path) -> None:
    federation, counts = Federation(tmp_path), []
    rng = np.random.default_rng(0)
    ways = [way for way in combinations_with_replacement(range(6), CLIENTS) if sum(each < 5 for each in way) <= 2]
    for way in ways:
        last = tuple(int(each) for each in rng.permutation(way))
        counted = federation.play(last)
        sent = tuple(client for client in range(CLIENTS) if last[client] >= 3)
        assert counted in ((), sent)
        counts.append(len(counted))
        np.testing.assert_allclose(federation.received + federation.owed(), federation.trained.sum(0), atol=1e-4)
    assert {0, 4, 5} == set(counts)
    federation.play((5,) * CLIENTS)  # all hear of their last replies
    np.testing.assert_allclose(federation.received + federation.owed(), federation.trained.sum(0), atol=1e-4)


def test_what_is_sent_says_nothing_without_its_masks(tmp_path: Path) -> None:
    """No answer holds the reply, nor a digest of it that could be guessed."""
    federation = Federation(tmp_path)
    sent: list[bytes] = []
    original = MaskedClient.answer

    def listening(self: MaskedClient, message: bytes) -> Answer:
        answer = original(self, message)
        sent.append(answer.message or b"")
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MaskedClient, "answer", listening)
        federation.play((5,) * CLIENTS)
    for number, store in enumerate(federation.stores):
        reply = Reply.decode(store.states[number].in_flight)
        assert len(reply.salt) == 16
        plain = Reply(reply.round, reply.method_digest, reply.examples, reply.blob).encode()
        assert not any(reply.blob in each or reply_digest(plain).to_bytes(8, "little") in each for each in sent)


def test_secrets_are_for_their_owner_alone(tmp_path: Path) -> None:
    Federation(tmp_path).play((5,) * CLIENTS)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"member.safetensors", "node.key", "node.pub", "known.json", "lock"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_nodes_are_known_again_by_their_keys(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.play((5,) * CLIENTS)
    (tmp_path / "2" / "node.key").write_bytes(bytes(32))  # somebody else in client 2's place
    assert federation.play((5,) * CLIENTS) == ()
    assert federation.play((5,) * CLIENTS) == (0, 1, 3, 4)


def test_nodes_are_known_again_in_another_run(tmp_path: Path) -> None:
    """One folder of keys for all runs of a node: a server cannot put others in their places in the next run."""
    keys = tmp_path / "keys"
    assert Federation(tmp_path / "one", keys).play((5,) * CLIENTS) == tuple(range(CLIENTS))
    assert Federation(tmp_path / "two", keys).play((5,) * CLIENTS) == tuple(range(CLIENTS))
    (keys / "2" / "node.key").write_bytes(bytes(32))
    assert Federation(tmp_path / "three", keys).play((5,) * CLIENTS) == ()


def test_keys_that_were_handed_out_before_hold_from_the_first_round_on(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    (keys / "0").mkdir(parents=True)
    (keys / "0" / "known.json").write_text(json.dumps({"1": "00" * 32}))
    federation = Federation(tmp_path, keys)
    federation.play((5,) * CLIENTS)
    assert not federation.stores[0].states  # client 0 takes no part beside a stranger
    (keys / "3" / "known.json").write_text("[1]")
    answer = federation.clients[3].answer(Invitation(3, Terms("test", 9, 20, 12, CLIENTS, 3, 4, 4)).encode())
    assert answer.message is None
    assert "public key in hex" in answer.remarks[0]


def test_a_request_out_of_place_gets_no_answer(tmp_path: Path) -> None:
    client = Federation(tmp_path).clients[0]
    answer = client.answer(Survivors(frozenset({1}), {}).encode())
    assert (answer.message, answer.remarks) == (None, ("this client takes part in no sum",))
    terms = Terms("test", 5, 20, 12, CLIENTS, threshold=3, survivors=4, neighbours=4)
    assert client.answer(Invitation(0, terms).encode()).message
    older = Terms("test", 4, 20, 12, CLIENTS, threshold=3, survivors=4, neighbours=4)
    assert client.answer(Invitation(0, older).encode()).remarks == ("an invitation to round 4 is out of date",)


def test_a_plan_travels() -> None:
    server = Server(LAYOUT, METHOD, Model(np.zeros(LAYOUT.size, np.float32)))
    server.open_round([0])
    broadcast = Broadcast.decode(server.broadcast(0))
    assert broadcast.plan is not None
    assert {"seed", "count", "step"} <= broadcast.plan.arrays().keys()
    assert broadcast.encode() == server.broadcast(0)


@pytest.mark.parametrize("plan", [None, RoundPlan(clip=1.0)], ids=["none", "without a support"])
def test_a_broadcast_whose_plan_is_not_whole_is_refused_before_anybody_trains(
    tmp_path: Path, plan: RoundPlan | None
) -> None:
    federation, original, refused = Federation(tmp_path), MaskedClient.answer, []

    def meddling(self: MaskedClient, message: bytes) -> Answer:
        if frame_kind(message) == "T":
            sent, collected = read_frame(message, "T").blobs
            made = replace(Broadcast.decode(sent), plan=plan).encode()
            answer = original(self, pack_frame("T", b"", (made, collected)))
            refused.append(answer.message is None)
            return answer
        return original(self, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MaskedClient, "answer", meddling)
        assert federation.play((5,) * CLIENTS) == ()
    assert len(refused) == 2 * CLIENTS
    assert all(refused)
    assert not federation.trained.any()
