"""Private rounds of real clients and a real server: what one client does to a sum, and rounds without any."""

import math

import numpy as np
import pytest
from scipy.stats import beta, chi2

from fedsparq import Layout, method
from fedsparq.aggregate import CommonMean, PrivateMean
from fedsparq.federate.client import Client, Trained
from fedsparq.federate.model import Model
from fedsparq.federate.server import Server
from fedsparq.federate.store import MemoryStore
from fedsparq.method import Method
from fedsparq.methods import resolver
from fedsparq.privacy import epsilon_of

LAYOUT = Layout.of({"a": (30, 20), "b": (40,)})
CLIP, CLIENTS, ROUNDS, ONE = 0.5, 5, 12, 3
LOST = {(number, ONE) for number in range(1, 8)} | {(2, 0), (3, 0), (9, 1)}
"""Replies that never arrive: client 3's of seven rounds, so that all it made waits in its residual."""


def quiet(count: int) -> np.ndarray:
    return np.zeros(count)


def private(name: str, draw=quiet, noise: float = 1.0) -> Method:
    chosen = method(name)
    own = chosen.aggregator
    support = own.support if isinstance(own, CommonMean) else None
    mean = PrivateMean(CLIP, noise, float(CLIENTS), CLIENTS, ROUNDS, support, draw=draw)
    return chosen.with_server(aggregator=mean)


def client(number: int, store: MemoryStore) -> Client:
    def train(model: Model, hook: object, round_number: int) -> Trained:
        rng = np.random.default_rng([number, round_number])
        return Trained(rng.normal(0.1, 0.3, LAYOUT.size).astype(np.float32), 1 + 10 * number)

    return Client(number, LAYOUT, train, store, resolver())


@pytest.mark.parametrize("name", ["fedsparq-private", "fedavg"])
def test_one_client_moves_the_sum_by_at_most_the_clip_also_after_lost_replies(name: str) -> None:
    """Each round is closed twice, from the same state and the same replies: with the client's, and without."""
    server = Server(LAYOUT, private(name), Model(np.zeros(LAYOUT.size, np.float32)))
    stores = [MemoryStore() for _ in range(CLIENTS)]
    moved, owed = [], []
    for number in range(1, ROUNDS + 1):
        before, downlink = server.state, server.downlink
        server.open_round(range(CLIENTS))
        answers = {each: client(each, stores[each]).answer(server.broadcast(each)).message for each in range(CLIENTS)}
        arrived = {each: answer for each, answer in answers.items() if (number, each) not in LOST}
        models = []
        for those in ({each: arrived[each] for each in arrived if each != ONE}, arrived):
            server.restore(before, downlink)
            server.open_round(range(CLIENTS))
            assert all(server.receive(each, answer).taken for each, answer in those.items() if answer)
            outcome = server.close_round()
            assert set(outcome.counted) == set(those)
            models.append(server.state.model.vector.astype(np.float64))
        moved.append(CLIENTS * float(np.linalg.norm(models[1] - models[0])))
        residual = stores[ONE].states[ONE].compression.residual
        owed.append(0.0 if residual is None else float(np.linalg.norm(residual)))
    assert moved[:7] == [0.0] * 7
    assert all(0.5 * CLIP < each <= CLIP * (1 + 1e-6) for each in moved[7:])
    if name == "fedsparq-private":
        assert min(owed[7:]) > 20 * CLIP  # what was lost has come back, and would be far too much


def test_a_round_to_which_nobody_comes_has_its_noise_too() -> None:
    for name in ("fedsparq-private", "fedavg"):
        chosen = private(name, noise=2.0, draw=PrivateMean.__dataclass_fields__["draw"].default)
        server = Server(LAYOUT, chosen, Model(np.zeros(LAYOUT.size, np.float32)))
        plan = chosen.plan(LAYOUT, server.state.aggregator)
        assert plan is not None
        support = np.arange(LAYOUT.size) if plan.support is None else plan.support.indices(LAYOUT.size)
        server.open_round([])
        outcome = server.close_round()
        assert (outcome.round, outcome.counted, outcome.events) == (1, (), ())
        vector = server.state.model.vector
        assert np.flatnonzero(vector).tolist() == support.tolist()
        statistic = float(((vector[support] * CLIENTS / (2.0 * CLIP)) ** 2).sum())
        assert 1e-4 < chi2.cdf(statistic, support.size) < 1 - 1e-4


def test_without_privacy_nothing_moves_where_nobody_comes() -> None:
    server = Server(LAYOUT, method("fedsparq-private"), Model(np.zeros(LAYOUT.size, np.float32)))
    server.open_round([])
    server.close_round()
    assert not server.state.model.vector.any()


def test_a_membership_test_finds_no_more_than_epsilon_allows() -> None:
    """Was client 1 there? Whole federations of two rounds, with it and without; it always moves one way, the other
    client nowhere. The best test there is sums that way up; a lower bound of epsilon from its errors (Clopper and
    Pearson, wrong once in 10,000) must stay below what was promised, and be well above nothing."""
    small, tries, noise, delta = Layout.of({"w": (8,)}), 300, 1.0, 1e-2
    mean = PrivateMean(CLIP, noise, 1.0, clients=2, rounds=2)
    chosen = method("fedavg").with_server(aggregator=mean)

    def moves(number: int) -> Client:
        update = np.zeros(8, np.float32)
        update[0] = 10.0 * number
        return Client(number, small, lambda *_: Trained(update, 1), MemoryStore(), resolver())

    def score(members: list[int]) -> float:
        server = Server(small, chosen, Model(np.zeros(8, np.float32)))
        clients = {number: moves(number) for number in members}
        for _ in range(2):
            server.open_round(members)
            for number, each in clients.items():
                assert server.receive(number, each.answer(server.broadcast(number)).message or b"").taken
            server.close_round()
        return float(server.state.model.vector[0])

    inside, outside = [np.array([score(members) for _ in range(tries)]) for members in ([0, 1], [0])]
    found = 0.0
    for threshold in np.linspace(0.0, 1.5, 7):
        hits, false = int((inside > threshold).sum()), int((outside > threshold).sum())
        least, most = beta.ppf(1e-5, hits, tries - hits + 1), beta.ppf(1 - 1e-5, false + 1, tries - false)
        found = max(found, math.log(max(least - delta, 1e-9) / most))
    assert 0.2 < found < epsilon_of(delta, noise, 2)
