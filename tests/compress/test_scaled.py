"""The scaled residual and the step ahead: nothing is lost by either, and both end in plain error feedback."""

import numpy as np
import pytest

import fedsparq
from fedsparq import Client, Layout, MemoryStore, Method, Model, Server, Trained
from fedsparq.compress.feedback import ScaledErrorFeedback
from fedsparq.methods import resolver

LAYOUT = Layout.of({"w": (40, 25), "b": (40,)})


def updates(rounds, scale=1.0):
    return [
        (scale * np.random.default_rng(r).normal(size=LAYOUT.size) / (1 + r)).astype(np.float32) for r in range(rounds)
    ]


@pytest.mark.parametrize("kappa", [0.3, 1.0])
def test_scaled_feedback_is_its_formula_and_loses_nothing(kappa):
    method, rng = fedsparq.method("scaled-feedback", fraction=0.02, kappa=kappa), np.random.default_rng(0)
    state, r, scaled = method.init(LAYOUT), np.zeros(LAYOUT.size), False
    for update in updates(12):
        norms = np.linalg.norm(update.astype(np.float64)), np.linalg.norm(r)
        b = min(1, kappa * norms[0] / norms[1]) if norms[1] else 1.0
        c = (update + b * r).astype(np.float32)
        payload, state = method.compress(update, state, rng)
        threshold = np.sort(np.abs(c))[-round(0.02 * LAYOUT.size)]
        np.testing.assert_allclose(payload.dense(), np.where(np.abs(c) >= threshold, c, 0), rtol=2e-3, atol=1e-6)
        r = r + update - payload.dense()
        np.testing.assert_allclose(state.residual, r, atol=1e-5)
        scaled |= b < 1
    assert scaled


def test_with_a_whole_residual_it_is_full_feedback_bit_for_bit():
    compressor = fedsparq.method("stc").compressor
    one, other = Method(compressor, ScaledErrorFeedback(1e9)), Method(compressor, "full")
    states = [one.init(LAYOUT), other.init(LAYOUT)]
    for r, update in enumerate(updates(6)):
        made = [
            method.compress(update, state, np.random.default_rng(r))
            for method, state in zip((one, other), states, strict=True)
        ]
        assert fedsparq.encode(made[0][0]) == fedsparq.encode(made[1][0])
        states = [state for _, state in made]
        assert states[0].residual.tobytes() == states[1].residual.tobytes()


def federation(alpha):
    """Clients that go half of the way to a point of their own, from wherever they are told to start."""
    server = Server(LAYOUT, fedsparq.method("sa-pef", fraction=0.02, alpha=alpha), Model(np.zeros(1040, np.float32)))
    goals, stores, sent, trained, starts = updates(2, 3.0), [MemoryStore(), MemoryStore()], [0, 0], [0, 0], []

    def client(j):
        def train(model, hook, number):
            starts.append(model.vector.copy())
            update = (goals[j] - model.vector) / 2
            trained[j] = trained[j] + update.astype(np.float64)
            return Trained(update, 1)

        return Client(j, LAYOUT, train, stores[j], resolver())

    clients = [client(0), client(1)]
    for _ in range(6):
        server.open_round((0, 1))
        for j in range(2):
            message = clients[j].answer(server.broadcast(j)).message
            blob = fedsparq.federate.messages.Reply.decode(message).blob
            sent[j] = sent[j] + fedsparq.decode(blob, LAYOUT).dense().astype(np.float64)
            server.receive(j, message)
        server.close_round()
    return server, [store.states[j].compression.residual for j, store in enumerate(stores)], sent, trained, starts


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_a_step_ahead_loses_nothing(alpha):
    _, residuals, sent, trained, starts = federation(alpha)
    for j in range(2):
        np.testing.assert_allclose(sent[j] + residuals[j], trained[j], atol=1e-4)
    moved = any((one != other).any() for one, other in zip(starts[::2], starts[1::2], strict=True))
    assert moved == (alpha > 0)


def test_no_step_ahead_is_plain_error_feedback():
    plain = Server(
        LAYOUT,
        Method(fedsparq.method("sa-pef", fraction=0.02).compressor, "full"),
        Model(np.zeros(1040, np.float32)),
    )
    ahead = federation(0.0)
    goals, method = updates(2, 3.0), plain.method
    model, states = np.zeros(1040, np.float32), [method.init(LAYOUT), method.init(LAYOUT)]
    for number in range(1, 7):
        total = np.zeros(1040, np.float32)
        for j in range(2):
            rng = np.random.default_rng([0, number, j, 1])
            payload, states[j] = method.compress((goals[j] - model) / 2, states[j], rng)
            payload.add_to(total, 1.0)
        model = model + total / np.float32(2)
    np.testing.assert_array_equal(ahead[0].state.model.vector, model)
