"""What is left out against a straight-line reference, and what is done with replies that did not count."""

import numpy as np
import pytest

import fedsparq
from fedsparq import Client, Layout, MemoryStore, Model, Payload, Server, Trained
from fedsparq.federate.rounds import Delivery, Traffic, play_round
from fedsparq.lab.specs import RunSpec, check
from fedsparq.methods import resolver
from fedsparq.protocols import Heard
from fedsparq.rules import CommonPart

LAYOUT = Layout.of({"a": (2, 3), "b": (4,)})


def heard(sent, change, rounds=1, share=1.0):
    payload = Payload.sparse(LAYOUT, np.arange(LAYOUT.size), np.asarray(sent, np.float32))
    return Heard(payload, share, None if change is None else np.asarray(change, np.float32), rounds)


def test_the_drift_is_what_the_client_sends_beyond_the_models_change_a_round():
    rng = np.random.default_rng(0)
    rule = CommonPart(weight=0.5)
    state = rule.init(LAYOUT)
    drift, spans = np.zeros(LAYOUT.size), [slice(0, 6), slice(6, 10)]
    for rounds in (1, 3, 10, 2):
        update = rng.standard_normal(LAYOUT.size).astype(np.float32) + 1
        rest, state = rule.end(update, state)
        out = np.zeros(LAYOUT.size)
        for span in spans:
            square = np.sum(drift[span] ** 2)
            out[span] = np.clip(np.sum(drift[span] * update[span]) / square, 0, 1) * drift[span] if square else 0
        np.testing.assert_allclose(rest, update - out, rtol=1e-4, atol=1e-5)
        change = rng.standard_normal(LAYOUT.size) * rounds
        state = rule.heard(heard(rest, change, rounds), state)
        drift = 0.5 * drift + 0.5 * (out + rest - change / rounds)
        np.testing.assert_allclose(state["drift"], drift, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("said", [heard(np.ones(10), None), heard(np.ones(10), np.ones(10), share=0.0)])
def test_a_reply_that_did_not_count_and_a_change_that_is_not_known_move_nothing(said):
    rule = CommonPart()
    np.testing.assert_array_equal(rule.heard(said, rule.init(LAYOUT))["drift"], 0)


def test_clients_that_pull_apart_learn_to_send_what_they_have_in_common():
    """Two clients move to minima of their own; what they send becomes small, and the model stays in the middle."""
    layout, minima = Layout.of({"w": (50,)}), np.random.default_rng(1).standard_normal((2, 50)).astype(np.float32)
    method = fedsparq.method("fedsparq-adaptive", bits=8, drift="left-out", server_momentum=0.0)
    server = Server(layout, method, Model(np.zeros(50, np.float32)))

    def train(client):
        return lambda model, hook, number: Trained(0.5 * (minima[client] - model.vector), 1)

    clients = [Client(j, layout, train(j), MemoryStore(), resolver()) for j in range(2)]
    for _ in range(30):
        play_round(
            server,
            range(2),
            lambda asked: [Delivery(j, clients[j].answer(server.broadcast(j))) for j in asked],
            Traffic(),
        )
    apart = np.linalg.norm(minima[0] - minima.mean(0))
    assert np.linalg.norm(server.state.model.vector - minima.mean(0)) < 0.1 * apart
    for client in clients:
        drift = client.store.states[client.number].compression.rules[0]["drift"]
        expected = 0.5 * (minima[client.number] - minima.mean(0))
        assert np.linalg.norm(drift - expected) < 0.2 * np.linalg.norm(expected)


def chosen(**more):
    settings = {"method": "fedsparq-adaptive", "clients": 10, "fraction": 0.3} | more
    return check(RunSpec, settings, "spec").chosen_method()


def test_it_is_the_default_where_not_all_clients_take_part_and_with_a_compressed_broadcast():
    assert chosen().options["drift"] == "left-out"
    assert chosen().label == "fedsparq-adaptive"
    assert chosen(downlink="lattice").traits.needs_model_change
    assert chosen(budget="20 kB").options["drift"] == "left-out"
    assert chosen(options={"drift": "sent"}).label == "fedsparq-adaptive drift=sent"
    assert chosen(fraction=1.0).options["drift"] == "sent"
    assert chosen(fraction=0.96).options["drift"] == "sent", "ten of ten are asked"


def test_it_is_not_the_default_where_the_servers_step_is_another_or_nobody_is_told_what_counted():
    for other in ({"optimizer": "adam"}, {"aggregator": "robust"}, {"acknowledge": False}):
        assert chosen(**other).options["drift"] == "sent"


def test_clients_with_budgets_of_their_own_leave_out_the_same():
    spec = check(
        RunSpec, {"method": "fedsparq-adaptive", "clients": 4, "fraction": 0.5, "client_budgets": {1: "9 kB"}}, "spec"
    )
    (own,) = spec.client_methods(lambda client: spec.rounds).values()
    assert own.options["drift"] == "left-out"
