"""EF21, EControl and SoteriaFL against straight loops of their papers, with lost replies and clients that come."""

import numpy as np
import pytest

import fedsparq
from fedsparq import Client, Layout, MemoryStore, Method, Model, OptionError, Server, Trained
from fedsparq.aggregate import ShiftedMean
from fedsparq.compress.feedback import Shifted
from fedsparq.methods import resolver
from fedsparq.methods.shifted import UnbiasedRandom

LAYOUT = Layout.of({"w": (30, 20), "b": (30,)})
D = LAYOUT.size


def gradient(client, number):
    return np.random.default_rng([client, number]).normal(size=D).astype(np.float32)


def top(vector, count):
    """The largest as float16: what `_largest` of the recipes is."""
    kept = np.argsort(-np.abs(vector), kind="stable")[:count]
    out = np.zeros_like(vector)
    out[kept] = vector[kept].astype(np.float16)
    return out


def play(name, rounds, fate, asked=lambda number: (0, 1, 2), **options):
    """A federation whose replies may be lost: the model's steps, each client's state after every round, the server."""
    server = Server(LAYOUT, fedsparq.method(name, **options), Model(np.zeros(D, np.float32)))
    stores = [MemoryStore() for _ in range(3)]
    clients = [
        Client(j, LAYOUT, lambda model, hook, at, j=j: Trained(gradient(j, at), 1), stores[j], resolver())
        for j in range(3)
    ]
    steps = []
    for number in range(1, rounds + 1):
        before = server.state.model.vector
        server.open_round(asked(number))
        for j in asked(number):
            answer = clients[j].answer(server.broadcast(j))
            if fate(number, j):
                server.receive(j, answer.message)
        server.close_round()
        steps.append(server.state.model.vector - before)
    # one more broadcast, so that every client has heard of its last reply
    server.open_round((0, 1, 2))
    for j in range(3):
        clients[j].answer(server.broadcast(j))
    return steps, [store.states[j].compression.feedback for j, store in enumerate(stores)], server


def lossy(number, client):
    return np.random.default_rng([7, number, client]).random() > 0.3


def sampled(number):
    return sorted(np.random.default_rng([8, number]).choice(3, 2, replace=False).tolist())


@pytest.mark.parametrize(("fate", "asked"), [(lambda *_: True, lambda _: (0, 1, 2)), (lossy, sampled)])
def test_ef21_is_its_papers(fate, asked):
    steps, states, server = play("ef21", 8, fate, asked, fraction=0.05, new=0.25)
    count = round(0.05 * D)
    v, h, heard, total = [None] * 3, np.zeros((3, D), np.float32), set(), np.zeros(D)
    for number, step in enumerate(steps, 1):
        for j in asked(number):
            g = gradient(j, number)
            v[j] = g if v[j] is None else np.float32(0.75) * v[j] + np.float32(0.25) * g
            m = top(v[j] - h[j], count)
            if fate(number, j):
                h[j] += m
                total += m
                heard.add(j)
        np.testing.assert_allclose(step, total / len(heard), atol=2e-6)
    for j in range(3):
        np.testing.assert_allclose(states[j]["shift"], h[j], atol=1e-6)
    np.testing.assert_allclose(server.state.aggregator["total"], h.sum(0), atol=1e-5)


def test_econtrol_is_its_papers():
    steps, states, _ = play("econtrol", 8, lossy, fraction=0.05, eta=0.3)
    count = round(0.05 * D)
    e, h, heard = np.zeros((3, D), np.float32), np.zeros((3, D), np.float32), set()
    for number, step in enumerate(steps, 1):
        for j in range(3):
            g = gradient(j, number)
            m = top(np.float32(0.3) * e[j] + (g - h[j]), count)
            e[j] += g - h[j]
            if lossy(number, j):
                e[j] -= m
                h[j] += m
                heard.add(j)
        np.testing.assert_allclose(step, h.sum(0) / len(heard), atol=3e-6)
    for j in range(3):
        np.testing.assert_allclose(states[j]["shift"], h[j], atol=1e-5)


def test_soterias_server_shift_is_the_mean_of_the_clients():
    _, states, server = play("soteriafl", 6, lossy, fraction=0.2)
    gain = fedsparq.method("soteriafl", fraction=0.2).feedback.gain
    assert gain == pytest.approx(np.sqrt((1 + 2 * 4) / (2 * 5**3)))
    total = server.state.aggregator["total"]
    np.testing.assert_allclose(total / 3, np.mean([s["shift"] for s in states], axis=0), atol=1e-5)
    assert np.abs(total).max() > 0.1


def test_without_gain_it_is_compressed_sgd_and_with_everything_the_shift_is_the_gradient():
    steps, states, _ = play("soteriafl", 3, lambda *_: True, fraction=0.1, gamma=0.0)
    assert not any(state["shift"].any() for state in states)
    assert all(np.count_nonzero(step) <= 3 * round(0.1 * D) for step in steps)
    steps, states, _ = play("soteriafl", 3, lambda *_: True, fraction=1.0, gamma=1.0)
    for j in range(3):
        np.testing.assert_allclose(states[j]["shift"], gradient(j, 3), atol=1e-5)
    np.testing.assert_allclose(steps[-1], np.mean([gradient(j, 3) for j in range(3)], axis=0), atol=1e-5)


def test_a_random_part_is_unbiased_and_costs_no_index():
    compressor, update = UnbiasedRandom(0.1), gradient(0, 0)
    total = np.zeros(D)
    for draw in range(4000):
        payload, _, _ = compressor.compress(update, LAYOUT, {}, np.random.default_rng(draw))
        total += payload.dense()
    error = total / 4000 - update
    assert np.abs(error / (3 * np.abs(update) / np.sqrt(4000))).max() < 4.5  # variance is (d / k - 1) x^2
    assert len(fedsparq.encode(payload)) <= 4 * payload.kept + 40


@pytest.mark.parametrize("name", ["ef21", "econtrol", "soteriafl"])
def test_halves_that_do_not_fit_are_refused(name):
    method = fedsparq.method(name)
    with pytest.raises(OptionError, match="needs a server that moves shifts by"):
        method.with_server(aggregator=fedsparq.Mean())
    with pytest.raises(OptionError, match="ShiftedMean needs replies relative to a shift"):
        fedsparq.method("fedsparq").with_server(aggregator=ShiftedMean())
    method.with_server(optimizer=fedsparq.Momentum(0.5))
    with pytest.raises(OptionError, match=r"needs a server that moves shifts by 0\.5"):
        Method(method.compressor, Shifted(0.5), aggregator=ShiftedMean(1.0))
