"""A client's state as a file: the same after as before, and never taken for sound when it is not."""

import numpy as np
import pytest
from small_federation import FEDSPARQ, LAYOUT, updates, vector

from fedsparq.compress.method import METHODS, method
from fedsparq.federate.archive import ArchiveError, pack, unpack
from fedsparq.federate.messages import Receipt, describe
from fedsparq.federate.model import Model
from fedsparq.federate.state import ClientState, StateError
from fedsparq.layout import Exact, Layout


def made(name: str = "fedsparq") -> ClientState:
    chosen = method(name)
    _, compression = chosen.compress(updates(1)(1), chosen.init(LAYOUT), np.random.default_rng(0))
    exact = Exact(np.array([0.5], np.float32), np.array([2**60], np.int64))
    return ClientState(
        compression, describe(chosen).decode(), 9, b"reply", Model(vector(2), exact), Receipt(8, 2**64 - 1)
    )


@pytest.mark.parametrize("name", sorted(METHODS))
def test_state_comes_back(name: str) -> None:
    state = made(name)
    again = ClientState.decode(state.encode(), LAYOUT)
    assert (again.method, again.round, again.in_flight) == (state.method, 9, b"reply")
    assert again.acknowledged == state.acknowledged
    assert again.compression.rounds == 1
    assert np.array_equal(again.compression.residual, state.compression.residual)  # type: ignore[arg-type]
    assert set(again.compression.memory) == set(state.compression.memory)
    for key, array in state.compression.memory.items():
        assert np.array_equal(again.compression.memory[key], array)
        assert again.compression.memory[key].dtype == array.dtype
    assert again.model is not None
    assert again.model.exact is not None
    assert again.model.exact.counters[0] == 2**60
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


def test_archive_covers_facts_and_shapes() -> None:
    array = np.arange(6, dtype=np.float32)
    assert unpack(pack({"a": 1}, {"x": array}))[0] == {"a": 1}
    assert np.array_equal(unpack(pack({}, {"x": array.reshape(2, 3)}))[1]["x"], array.reshape(2, 3))
    data = pack({"fact": 1234}, {"x": array})
    with pytest.raises(ArchiveError):
        unpack(data.replace(b"1234", b"1235"))
    with pytest.raises(ArchiveError):
        unpack(data.replace(b"[6]", b"[6]".replace(b"6", b"5")))


def test_start_is_nothing() -> None:
    state = ClientState(FEDSPARQ.init(LAYOUT), "x")
    again = ClientState.decode(state.encode(), LAYOUT)
    assert (again.round, again.in_flight, again.model, again.acknowledged) == (0, b"", None, Receipt())
