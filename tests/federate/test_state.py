"""A client's state as a file: the same after as before, and never taken for sound when it is not."""

from dataclasses import replace

import numpy as np
import pytest
from small_federation import FEDSPARQ, identity, updates, vector

from fedsparq.archive import pack, unpack
from fedsparq.federate.messages import Acknowledgement
from fedsparq.federate.model import Model
from fedsparq.federate.state import ClientState, StateError
from fedsparq.layout import Arrays, Buffers, Layout
from fedsparq.method import Identity, Method
from fedsparq.methods import METHODS, method
from fedsparq.protocols import ClientRule, State

LAYOUT = Layout.of(
    {
        "weight": np.zeros((3, 3), np.float32),
        "bias": np.zeros(3, np.float32),
        "norm.running_mean": np.zeros(1, np.float32),
        "norm.num_batches_tracked": np.zeros(1, np.int64),
    }
)


def made(name: str = "fedsparq") -> ClientState:
    chosen = method(name)
    _, compression = chosen.compress(updates(1)(1), chosen.init(LAYOUT), np.random.default_rng(0))
    buffers = Buffers(np.array([0.5], np.float32), np.array([2**60], np.int64))
    last = Acknowledgement(8, 2**64 - 1, 1 / 3)
    return ClientState(compression, identity(chosen), 9, b"reply", Model(vector(2), buffers), last)


def assert_same(left: State, right: State) -> None:
    assert len(left.rules) == len(right.rules)
    assert left.arrays().keys() == right.arrays().keys()
    for key, array in right.arrays().items():
        assert np.array_equal(left.arrays()[key], array)
        assert left.arrays()[key].dtype == array.dtype
        assert left.arrays()[key].shape == array.shape


@pytest.mark.parametrize("name", sorted(METHODS))
def test_state_comes_back(name: str) -> None:
    state = made(name)
    again = ClientState.decode(state.encode(), LAYOUT)
    assert (again.method, again.round, again.in_flight) == (state.method, 9, b"reply")
    assert again.acknowledged == state.acknowledged
    assert again.method.digest == state.method.digest
    assert_same(again.compression, state.compression)
    assert again.model is not None
    assert again.model.buffers is not None
    assert again.model.buffers.counters[0] == 2**60
    assert again.encode() == state.encode()


def test_any_damage_is_noticed() -> None:
    data = made().encode()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x04
        with pytest.raises(StateError):
            ClientState.decode(bytes(damaged), LAYOUT)
    for length in range(0, len(data), 7):
        with pytest.raises(StateError):
            ClientState.decode(data[:length], LAYOUT)


def test_state_of_another_model_or_version_is_refused() -> None:
    with pytest.raises(StateError, match="digest"):
        ClientState.decode(made().encode(), Layout.of({"other": (12,)}))
    about, arrays = unpack(made().encode())
    with pytest.raises(StateError, match="version 99"):
        ClientState.decode(pack(about | {"version": 99}, arrays), LAYOUT)
    with pytest.raises(StateError):
        ClientState.decode(pack({}, {}), LAYOUT)


def test_start_is_nothing() -> None:
    state = ClientState(FEDSPARQ.init(LAYOUT), Identity("x"))
    again = ClientState.decode(state.encode(), LAYOUT)
    assert (again.round, again.in_flight, again.model, again.acknowledged) == (0, b"", None, Acknowledgement())


class Counting(ClientRule):
    """A rule with a state of its own."""

    def init(self, layout: Layout) -> Arrays:
        return {"seen": np.zeros((), np.int64), "last": np.zeros((2, layout.size // 2), np.float16)}

    def end(self, update: np.ndarray, state: Arrays) -> tuple[np.ndarray, Arrays]:
        return update, {"seen": state["seen"] + 1, "last": update.reshape(2, -1).astype(np.float16)}


def test_states_of_client_rules_come_back_each_with_its_own() -> None:
    chosen = Method(FEDSPARQ.compressor, "full", rules=(Counting(), ClientRule(), Counting()))
    start = chosen.init(LAYOUT)
    _, compression = chosen.end(updates(1)(1), start)
    assert [set(arrays) for arrays in compression.rules] == [{"seen", "last"}, set(), {"seen", "last"}]
    compression = replace(compression, rules=(compression.rules[0], {}, start.rules[2]))
    again = ClientState.decode(ClientState(compression, Identity("x")).encode(), LAYOUT).compression
    assert_same(again, compression)
    assert [int(again.rules[number]["seen"]) for number in (0, 2)] == [1, 0]
    assert again.rules[1] == {}
