"""What unbiased methods let go on purpose: rounding noise, and what did not count. The books still come out.

all updates = sum of share x reply + in flight + residual + what was let go on purpose
"""

import numpy as np
import pytest
from numpy.typing import NDArray
from sharing import Sharing

from fedsparq.federate.client import Client, Trained
from fedsparq.federate.messages import Reply, reply_digest
from fedsparq.federate.model import Model
from fedsparq.federate.server import Server
from fedsparq.federate.store import MemoryStore
from fedsparq.layout import Layout
from fedsparq.methods import method, resolver
from fedsparq.protocols import GradientHook
from fedsparq.wire import decode

LAYOUT = Layout.of({"weight": (40, 20), "bias": (20,)})
METHOD = method("fedsparq-adaptive", bits=2.0)
SEED, ROUNDS = 3, 30
SHARES = [1.0, 0.5, 0.0]
Vector = NDArray[np.float64]


def update(number: int) -> NDArray[np.float32]:
    return np.random.default_rng([7, number]).standard_t(3, size=LAYOUT.size).astype(np.float32)


def residual(store: MemoryStore) -> Vector:
    owed = store.states[0].compression.residual
    assert owed is not None
    return owed.astype(np.float64)


class Books:
    """One client's rounds, and all that became of its updates."""

    def __init__(self) -> None:
        chosen = METHOD.with_server(Sharing(lambda client, number: SHARES[number % 3]))
        self.server = Server(LAYOUT, chosen, Model(np.zeros(LAYOUT.size, np.float32)))
        self.store = MemoryStore()
        self.client = Client(0, LAYOUT, self.train, self.store, resolver(), SEED)
        self.updates, self.counted, self.uncounted, self.noise = (np.zeros(LAYOUT.size) for _ in range(4))

    def train(self, model: Model, hook: GradientHook | None, number: int) -> Trained:
        self.updates += update(number)
        return Trained(update(number), 10)

    def play(self, lost: bool) -> None:
        number = self.server.state.round + 1
        dense, noise = self.alone(number)
        self.server.open_round([0])
        answer = self.client.answer(self.server.broadcast(0))
        assert answer.message is not None
        assert not any("put back" in remark for remark in answer.remarks)
        sent = decode(Reply.decode(answer.message).blob, LAYOUT).dense()
        assert np.array_equal(sent, dense), "nothing of what did not count is in the next reply"
        if not lost:
            assert self.server.receive(0, answer.message).taken
        self.server.close_round()
        last = self.server.state.counted.get(0)
        share = last.share if last is not None and last.digest == reply_digest(answer.message) else 0.0
        self.noise += noise
        self.counted += share * dense
        self.uncounted += (1 - share) * dense

    def alone(self, number: int) -> tuple[Vector, Vector]:
        """The reply and its rounding noise, as the method makes them of the state before the round."""
        known = self.store.states.get(0)
        before = known.compression if known else METHOD.init(LAYOUT)
        payload, after = METHOD.compress(update(number), before, np.random.default_rng([SEED, number, 0, 1]))
        assert before.residual is not None
        assert after.residual is not None
        dense = payload.dense().astype(np.float64)
        return dense, update(number) + before.residual.astype(np.float64) - dense - after.residual


def test_books_of_what_was_let_go_come_out() -> None:
    """What was lost or did not count leaves no trace in the residual; all else is counted, owed or rounding noise."""
    books = Books()
    assert not METHOD.traits.conserves_mass
    for number in range(ROUNDS):
        books.play(lost=number % 5 == 4)
        let_go = books.uncounted + books.noise
        np.testing.assert_allclose(books.updates, books.counted + residual(books.store) + let_go, atol=1e-3)
    assert np.abs(books.uncounted).sum() > 0.2 * np.abs(books.updates).sum(), "a good part did not count"
    assert np.abs(residual(books.store)).sum() > 0, "what was deferred is owed"


def test_rounding_noise_is_unbiased() -> None:
    """So that it may be let go: over many draws what is sent plus what is deferred comes to the update."""
    draws, given = 800, update(1)
    state = METHOD.init(LAYOUT)
    total, square = np.zeros(LAYOUT.size), np.zeros(LAYOUT.size)
    for draw in range(draws):
        payload, after = METHOD.compress(given, state, np.random.default_rng(draw))
        assert after.residual is not None
        noise = given - payload.dense().astype(np.float64) - after.residual
        total += noise
        square += noise**2
    spread = np.sqrt(square / draws)
    assert spread.max() > 0.1, "there is noise"
    error = np.abs(total / draws) / np.maximum(spread / np.sqrt(draws), 1e-6)
    assert error.max() < 5


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_what_did_not_count_is_not_put_back(share: float) -> None:
    state = METHOD.init(LAYOUT)
    payload, state = METHOD.compress(update(1), state, np.random.default_rng(0))
    after = METHOD.acknowledge(state, payload, share)
    assert np.array_equal(after.residual, state.residual)  # type: ignore[arg-type]
