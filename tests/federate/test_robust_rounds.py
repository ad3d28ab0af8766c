"""Robust rules over 100 rounds with error feedback: the books come out, and honest clients never owe more and more."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fedsparq.aggregate import CenteredClipping, FLTrust, GeometricMedian, MultiKrum, Robust, clipped_mean, rounds
from fedsparq.federate.client import Client, Trained
from fedsparq.federate.messages import Reply
from fedsparq.federate.model import Model
from fedsparq.federate.server import Server
from fedsparq.federate.store import MemoryStore
from fedsparq.layout import Layout
from fedsparq.methods import method, resolver
from fedsparq.protocols import Aggregator, GradientHook
from fedsparq.wire import decode

LAYOUT = Layout.of({"weight": (20, 10), "bias": (10,)})
CLIENTS, LONG, LIAR = 8, 6, 7
RULES: dict[str, Aggregator] = {
    "robust": Robust(),
    "centered-clipping": CenteredClipping(bucket=1),
    "in buckets": CenteredClipping(),
    "geometric-median": GeometricMedian(),
    "multi-krum": MultiKrum(),
    "clipped-mean": clipped_mean(0.0),
    "fltrust": FLTrust(train=lambda vector, buffers, number: update(0, 0)),
}


def update(client: int, number: int) -> NDArray[np.float32]:
    """Honest clients agree somewhat; one of them always moves five times as far, and one client lies."""
    common = np.random.default_rng(1).normal(size=LAYOUT.size)
    own = common + 2 * np.random.default_rng([client, number]).normal(size=LAYOUT.size)
    return (own * {LONG: 5.0, LIAR: -100.0}.get(client, 1.0)).astype(np.float32)


class Federation:
    """Clients of one server, and a record of what became of each one's updates."""

    def __init__(self, rule: Aggregator) -> None:
        chosen = method("fedsparq").with_server(aggregator=rule)
        self.server = Server(LAYOUT, chosen, Model(np.zeros(LAYOUT.size, np.float32)))
        self.store = MemoryStore()
        self.made, self.acknowledged = np.zeros((CLIENTS, LAYOUT.size)), np.zeros((CLIENTS, LAYOUT.size))
        self.owed = np.zeros((CLIENTS, LAYOUT.size))

    def play(self) -> NDArray[np.float64]:
        """One round; the norm of what each client owes after it."""
        self.server.open_round(range(CLIENTS))
        replies = {}
        for number in range(CLIENTS):

            def train(model: Model, hook: GradientHook | None, at: int, number: int = number) -> Trained:
                self.made[number] += update(number, at)
                return Trained(update(number, at), 10)

            answer = Client(number, LAYOUT, train, self.store, resolver()).answer(self.server.broadcast(number))
            assert answer.message is not None
            assert self.server.receive(number, answer.message).taken
            replies[number] = decode(Reply.decode(answer.message).blob, LAYOUT).dense().astype(np.float64)
        self.shares = self.server.close_round().shares
        for number, reply in replies.items():
            last = self.server.state.counted.get(number)
            share = last.share if last is not None and last.round == self.server.state.round else 0.0
            residual = self.store.states[number].compression.residual
            assert residual is not None
            self.acknowledged[number] += share * reply
            self.owed[number] = residual + (1 - share) * reply
        return np.linalg.norm(self.owed, axis=1)


@pytest.mark.parametrize("name", RULES)
def test_books_come_out_and_residuals_stay_bounded(name: str) -> None:
    federation = Federation(RULES[name])
    owed = np.array([federation.play() for _ in range(100)])
    np.testing.assert_allclose(federation.acknowledged + federation.owed, federation.made, rtol=0, atol=2e-2)
    length = np.array([np.linalg.norm(update(client, 1)) for client in range(CLIENTS)])
    assert (owed[50:, :LIAR].max(axis=0) <= 1.25 * owed[:50, :LIAR].max(axis=0)).all()
    assert (owed[:, :LIAR].max(axis=0) <= 6 * length[:LIAR]).all()


def test_without_letting_go_a_client_that_is_always_clipped_owes_more_and_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the bound is for: this is what would happen."""
    monkeypatch.setattr(rounds, "MAX_RETURNED_SHARE", 1.0)
    federation = Federation(CenteredClipping(bucket=1))
    owed = np.array([federation.play() for _ in range(60)])[:, LONG]
    assert owed[59] > 1.7 * owed[29]


@pytest.mark.parametrize("name", ["robust", "centered-clipping", "multi-krum"])
def test_no_honest_client_is_left_out_for_ever(name: str) -> None:
    federation = Federation(RULES[name])
    heard = np.zeros(CLIENTS)
    for _ in range(40):
        before = federation.server.state.model.vector.copy()
        federation.play()
        assert np.linalg.norm(federation.server.state.model.vector - before) < 40
        heard += [federation.shares[client] > 0 for client in range(CLIENTS)]
    assert (heard[:LIAR] >= 10).all(), heard
