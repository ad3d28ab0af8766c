"""What a client does with each broadcast, and what it says about it."""

from dataclasses import replace

import numpy as np
import pytest
from small_federation import (
    FEDSPARQ,
    LAYOUT,
    broadcast,
    client,
    counted,
    dense,
    reply,
    residual,
    server,
    total,
    updates,
    vector,
)

from fedsparq.errors import RunError, WireError
from fedsparq.federate.client import Client, Trained
from fedsparq.federate.messages import FullWanted, decode_answer
from fedsparq.federate.model import Model
from fedsparq.federate.state import ClientState
from fedsparq.federate.store import MemoryStore
from fedsparq.layout import Arrays, Layout
from fedsparq.method import Identity, Method
from fedsparq.methods import method, resolver
from fedsparq.protocols import ClientRule


def test_same_broadcast_again_gets_the_same_reply() -> None:
    store = MemoryStore()
    one = client(0, store)
    first = one.answer(broadcast(1).encode())
    before = store.states[0]
    again = one.answer(broadcast(1).encode())
    assert again.message == first.message
    assert again.remarks == ("broadcast came again: same reply sent again",)
    assert store.states[0] is before


def test_broadcast_out_of_date_is_ignored() -> None:
    store = MemoryStore()
    one = client(0, store)
    one.answer(broadcast(5).encode())
    before = store.states[0]
    answer = one.answer(broadcast(4).encode())
    assert answer.message is None
    assert "round 4 is out of date" in answer.remarks[0]
    assert store.states[0] is before


def test_damaged_broadcast_is_said_to_be() -> None:
    data = bytearray(broadcast(1).encode())
    data[40] ^= 1
    answer = client(0).answer(bytes(data))
    assert answer.message is None
    assert "could not be read" in answer.remarks[0]


def test_state_is_safe_before_the_reply_leaves() -> None:
    class FullDisk(MemoryStore):
        def save(self, client: int, state: ClientState) -> None:
            raise RunError("could not write: No space left on device")

    store = FullDisk()
    with pytest.raises(RunError):
        client(0, store).answer(broadcast(1).encode())
    assert store.states == {}


def test_another_model_is_an_error() -> None:
    stranger = Client(0, Layout.of({"w": (12,)}), lambda *_: Trained(vector(1), 1), MemoryStore(), resolver())
    with pytest.raises(WireError, match="both sides must build the same model"):
        stranger.answer(broadcast(1).encode())


def test_model_that_cannot_be_built_is_asked_for() -> None:
    changes = replace(broadcast(3), base=2, hold=True)
    answer = client(0).answer(changes.encode())
    assert answer.message is not None
    assert decode_answer(answer.message) == FullWanted(3)
    assert answer.remarks == ("model not at hand: whole model asked for",)
    assert reply(vector(1)) != answer.message


def test_method_that_is_not_the_servers_is_refused_before_anything_happens() -> None:
    store = MemoryStore()
    one = client(0, store)
    asked = replace(broadcast(1), method=replace(broadcast(1).method, version="99"))
    with pytest.raises(WireError, match="version 99 of 'fedsparq' instead of version"):
        one.answer(asked.encode())
    with pytest.raises(WireError, match="there is no method 'nobody'"):
        one.answer(replace(asked, method=Identity("nobody")).encode())
    assert store.states == {}


def test_method_made_by_hand_needs_no_name_where_both_sides_have_the_object() -> None:
    mine = Method(FEDSPARQ.compressor, feedback="full")
    made, store = server(mine), MemoryStore()
    one = Client(0, LAYOUT, lambda *_: Trained(updates(0)(1), 1), store, lambda identity: mine)
    for _ in range(2):
        made.open_round([0])
        answer = one.answer(made.broadcast(0))
        assert answer.message is not None
        assert answer.remarks == ()
        assert made.receive(0, answer.message).taken
        assert made.close_round().counted == (0,)


class Watching(ClientRule):
    """A rule that uses every hook, and says what it saw."""

    def __init__(self) -> None:
        self.residuals: list[np.ndarray | None] = []

    def init(self, layout: Layout) -> Arrays:
        return {"rounds": np.zeros(1)}

    def start(self, model: np.ndarray, residual: np.ndarray | None, state: Arrays) -> np.ndarray:
        self.residuals.append(residual)
        return model + np.float32(5)

    def gradient(self, gradient: np.ndarray, weights: object, start: object, state: Arrays) -> None:
        gradient += 10 * (state["rounds"][0] + 1)

    def end(self, update: np.ndarray, state: Arrays) -> tuple[np.ndarray, Arrays]:
        return 2 * update, {"rounds": state["rounds"] + 1}


def test_client_rules_act_at_the_start_on_the_gradient_and_at_the_end() -> None:
    rule, store = Watching(), MemoryStore()
    mine = Method(method("top-10").compressor, "full", rules=(rule, Watching()))
    gradients = []

    def train(model: Model, hook: object, number: int) -> Trained:
        assert np.array_equal(model.vector, vector(10)), "each rule moves the start by five"
        gradient = vector(0)
        hook(gradient, vector(1), model.vector)  # type: ignore[operator]
        gradients.append(float(gradient[0]))
        return Trained(updates(0)(number), 1)

    one = Client(0, LAYOUT, train, store, lambda identity: mine)
    first = one.answer(broadcast(1).encode())
    np.testing.assert_allclose(dense(first.message) + residual(store), 4 * total(1), atol=1e-5)
    owed = residual(store).astype(np.float32)
    one.answer(broadcast(2, counted(store.states[0])).encode())
    assert gradients == [20.0, 40.0]
    assert [float(arrays["rounds"][0]) for arrays in store.states[0].compression.rules] == [2, 2]
    assert rule.residuals[0] is not None
    assert not rule.residuals[0].any()
    assert np.array_equal(rule.residuals[1], owed), "a rule sees what is owed"  # type: ignore[arg-type]


def test_held_model_is_the_servers_not_where_training_started() -> None:
    store, mine = MemoryStore(), Method(method("fedavg").compressor, rules=(Watching(),))
    one = Client(0, LAYOUT, lambda *_: Trained(vector(1), 1), store, lambda identity: mine)
    one.answer(replace(broadcast(1), hold=True).encode())
    assert np.array_equal(store.held[0].model.vector, vector(0))


def test_no_hook_where_no_rule_looks_at_gradients() -> None:
    hooks = []

    def train(model: Model, hook: object, number: int) -> Trained:
        hooks.append(hook)
        return Trained(vector(1), 1)

    for number, mu in enumerate((0.0, 0.1), start=1):
        one = Client(0, LAYOUT, train, MemoryStore(), resolver())
        one.answer(broadcast(number, proximal_mu=mu).encode())
    assert hooks[0] is None
    assert callable(hooks[1])
