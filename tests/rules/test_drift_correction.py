"""FedCOMGATE against its closed form: two quadratics whose clients drift apart."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedsparq
from fedsparq import Client, Layout, MemoryStore, Model, OptionError, Server, Trained, Validation
from fedsparq.federate.downlink import Downlink, Lattice
from fedsparq.federate.rounds import Delivery, Traffic, play_round
from fedsparq.lab.specs import RunSpec, check
from fedsparq.methods import resolver
from fedsparq.rules import DriftCorrection

LAYOUT = Layout.of({"w": (1,)})
CURVATURE, MINIMUM = (1.0, 4.0), (1.0, -2.0)


class Quadratics:
    """f_j = h_j (w - a_j)^2 / 2, trained by `steps` gradient steps of 0.05; replies can be lost on their way."""

    def __init__(self, name, steps=(10, 10), layout=LAYOUT, lost=lambda number, client: False, **options):
        self.method, self.steps, self.lost = fedsparq.method(name, **options), steps, lost
        self.server = Server(layout, self.method, Model(np.zeros(layout.size, np.float32)))
        self.stores = [MemoryStore(), MemoryStore()]
        self.clients = [Client(j, layout, self.train(j), self.stores[j], resolver()) for j in range(2)]

    def train(self, j):
        def train(model, hook, number):
            start = torch.tensor(model.vector)
            x = start.clone()
            for _ in range(self.steps[j]):
                gradient = CURVATURE[j] * (x - MINIMUM[j])
                if hook:
                    hook(gradient, x, start)
                x -= 0.05 * gradient
            return Trained(x.numpy() - model.vector, 1, reach=0.05 * self.steps[j])

        return train

    def play(self, rounds):
        for _ in range(rounds):
            number = self.server.state.round + 1
            play_round(
                self.server, range(2), lambda asked, n=number: [self.ask(n, client) for client in asked], Traffic()
            )
        return float(self.server.state.model.vector[0])

    def ask(self, number, client):
        answer = self.clients[client].answer(self.server.broadcast(client))
        return Delivery(client, replace(answer, message=None) if self.lost(number, client) else answer)

    def drifts(self):
        return [store.states[j].compression.rules[0]["drift"].copy() for j, store in enumerate(self.stores)]


def test_fedcom_ends_where_the_drift_leaves_it_and_gate_at_the_optimum():
    assert Quadratics("fedcom").play(300) == pytest.approx(-1.0696, abs=1e-4)
    gate = Quadratics("fedcomgate")
    assert gate.play(300) == pytest.approx(-1.4, abs=1e-4)
    np.testing.assert_allclose(gate.drifts(), [[-2.4], [2.4]], atol=1e-3)


def test_gate_with_a_server_step_of_its_own_and_with_unequal_steps():
    """With its own number of steps a client counts by it, as in FedAvg: sum tau_j h_j (w - a_j) = 0."""
    assert Quadratics("fedcomgate", gamma=0.5).play(600) == pytest.approx(-1.4, abs=1e-3)
    gate = Quadratics("fedcomgate", steps=(10, 4))
    assert gate.play(600) == pytest.approx((10 * 1 - 4 * 4 * 2) / (10 * 1 + 4 * 4), abs=1e-3)


def test_the_drifts_add_up_to_zero_though_replies_are_lost():
    layout = Layout.of({"w": (40,)})
    rng = np.random.default_rng(0)
    lost = {(number, client) for number in range(1, 30) for client in range(2) if rng.random() < 0.3}
    gate = Quadratics("fedcomgate", layout=layout, lost=lambda *at: at in lost, levels=4)
    moved = False
    for _ in range(30):
        before = [store.states.get(j) for j, store in enumerate(gate.stores)]
        gate.play(1)
        one, other = gate.drifts()
        np.testing.assert_allclose(one + other, 0, atol=2e-5)
        if before[0] is not None:
            number = gate.server.state.round - 1
            was = [state.compression.rules[0]["drift"] for state in before]
            for j, now in enumerate((one, other)):
                assert (number, j) not in lost or np.array_equal(now, was[j])
        moved |= bool(np.abs(one).max() > 0.1)
    assert moved


def test_fedcom_with_a_step_of_1_is_fedpaq():
    update = np.random.default_rng(1).normal(size=1).astype(np.float32)
    one, other = (fedsparq.method(name) for name in ("fedcom", "fedpaq"))
    payloads = [m.compress(update, m.init(LAYOUT), np.random.default_rng(2))[0] for m in (one, other)]
    assert fedsparq.encode(payloads[0]) == fedsparq.encode(payloads[1])
    assert (one.aggregator, one.optimizer) == (other.aggregator, other.optimizer)


def test_nothing_moves_unless_the_next_model_was_heard():
    rule = DriftCorrection(1.0)
    state = {"drift": np.ones(1, np.float32)}
    payload = fedsparq.Payload.full(LAYOUT, np.ones(1, np.float32))
    change = np.zeros(1, np.float32)
    for heard in ((payload, 0.0, change, 1.0), (payload, 1.0, None, 1.0), (payload, 1.0, change, 0.0)):
        assert rule.heard(fedsparq.protocols.Heard(*heard), state) is state


def test_combinations_in_which_the_mean_cannot_be_told_are_refused():
    method = fedsparq.method("fedcomgate")
    with pytest.raises(OptionError, match="DriftCorrection needs a plain step of 1"):
        method.with_server(optimizer=fedsparq.Adam())
    with pytest.raises(OptionError, match="compressed broadcast would hide"):
        Server(LAYOUT, method, Model(np.zeros(1, np.float32)), downlink=Downlink(LAYOUT, Lattice()))
    with pytest.raises(OptionError, match="acknowledge must be on"):
        Server(LAYOUT, method, Model(np.zeros(1, np.float32)), validation=Validation(acknowledge=False))
    for bad in ({"fraction": 0.5, "clients": 4}, {"downlink": "lattice"}, {"acknowledge": False}):
        with pytest.raises(OptionError):
            check(RunSpec, {"method": "fedcomgate", **bad})


def test_a_task_that_does_not_say_how_far_it_trains_is_told_to():
    gate = Quadratics("fedcomgate")
    gate.clients = [replace(one, train=lambda *_: Trained(np.ones(1, np.float32), 1)) for one in gate.clients]
    with pytest.raises(OptionError, match=r"needs reach=lr \* steps"):
        gate.play(1)


@pytest.mark.parametrize(("momentum", "steps"), [(0.0, 7), (0.9, 3), (0.5, 40)])
def test_the_reach_of_training(momentum, steps):
    velocity = moved = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        moved += 0.1 * velocity
    assert fedsparq.lab.tasks.Training(lr=0.1, momentum=momentum).reach(steps) == pytest.approx(moved)
