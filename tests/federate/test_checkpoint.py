"""A server as a file: it goes on as if nothing had happened."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sharing import Sharing
from small_federation import FEDSPARQ, LAYOUT, client, identity, server, vector

from fedsparq.errors import RunError
from fedsparq.federate.checkpoint import load_server, save_server
from fedsparq.federate.server import Server
from fedsparq.federate.store import MemoryStore
from fedsparq.federate.validation import Validation
from fedsparq.layout import Arrays, Layout
from fedsparq.method import Method
from fedsparq.methods import method
from fedsparq.optimize import Adam, Momentum, Yogi

VALIDATION = Validation(norm_limit="3x median")


def assert_same_arrays(left: Arrays, right: Arrays) -> None:
    assert left.keys() == right.keys()
    for name, array in right.items():
        assert (left[name].dtype, left[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(left[name], array)


def play(made: Server, store: MemoryStore, rounds: int) -> None:
    for _ in range(rounds):
        made.open_round(range(3))
        for number in range(3):
            answer = client(number, store).answer(made.broadcast(number))
            if answer.message is not None and (number, made.state.round) != (1, 2):
                made.receive(number, answer.message)
        made.close_round()


@pytest.mark.parametrize("down", [None, "fedsparq", "stc", "random-10"])
@pytest.mark.parametrize("rounds", [0, 1, 2, 4])
def test_restored_server_goes_on_bit_for_bit(tmp_path: Path, down: str | None, rounds: int) -> None:
    path, downlink = tmp_path / "server", method(down) if down else None
    whole, store = server(FEDSPARQ, VALIDATION, downlink), MemoryStore()
    play(whole, store, rounds)
    save_server(whole, path)
    states, held = dict(store.states), dict(store.held)
    play(whole, store, 3)
    for other in (server(FEDSPARQ, VALIDATION, downlink), whole):
        load_server(other, path)
        assert other.state.round == rounds
        resumed = MemoryStore(dict(states), dict(held))
        play(other, resumed, 3)
        assert np.array_equal(other.state.model.vector, whole.state.model.vector)
        assert_same_arrays(other.state.optimizer, whole.state.optimizer)
        assert_same_arrays(other.state.aggregator, whole.state.aggregator)
        assert other.state.counted == whole.state.counted
        assert other.state.norm_limit == whole.state.norm_limit
        assert other.downlink.held == whole.downlink.held
        assert other.downlink.changes == whole.downlink.changes
        assert {n: s.encode() for n, s in resumed.states.items()} == {n: s.encode() for n, s in store.states.items()}


def test_open_round_is_forgotten(tmp_path: Path) -> None:
    made = server(FEDSPARQ)
    save_server(made, tmp_path / "server")
    made.open_round([0])
    made.note(0, "something")
    made.receive(0, client(0).answer(made.broadcast(0)).message or b"")
    load_server(made, tmp_path / "server")
    with pytest.raises(RunError, match="open_round"):
        made.close_round()
    made.open_round([0])
    outcome = made.close_round()
    assert [event.client for event in outcome.events] == [-1]
    assert not made.state.model.vector.any()


def test_any_damage_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "server"
    save_server(server(FEDSPARQ), path)
    data = path.read_bytes()
    for place in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        path.write_bytes(bytes(damaged))
        made = server(FEDSPARQ)
        made.state.model.vector[:] = 7
        with pytest.raises(RunError, match="checkpoint"):
            load_server(made, path)
        assert np.array_equal(made.state.model.vector, vector(7)), "nothing is changed by half"
    path.unlink()
    with pytest.raises(RunError, match="No such file"):
        load_server(server(FEDSPARQ), path)


def test_another_model_is_refused(tmp_path: Path) -> None:
    from fedsparq.federate.model import Model

    save_server(server(FEDSPARQ), tmp_path / "server")
    other = Layout.of({"other": (12,)})
    with pytest.raises(RunError, match="another model"):
        load_server(Server(other, FEDSPARQ, Model(vector(0, other))), tmp_path / "server")
    assert LAYOUT.size == other.size


PARTS: dict[str, Method] = {
    "adam": FEDSPARQ.with_server(optimizer=Adam(lr=0.05)),
    "yogi": FEDSPARQ.with_server(optimizer=Yogi()),
    "momentum with restart": FEDSPARQ.with_server(optimizer=Momentum(0.5, restart=True)),
    "an aggregator of the user's": FEDSPARQ.with_server(Sharing(lambda client, number: 1 / (1 + client + number))),
    "both": method("stc").with_server(Sharing(lambda client, _: client / 2), Adam()),
}


@pytest.mark.parametrize("kind", PARTS)
def test_states_of_any_server_part_come_back(tmp_path: Path, kind: str) -> None:
    path, chosen = tmp_path / "server", PARTS[kind]
    whole, store = server(chosen, VALIDATION), MemoryStore()
    play(whole, store, 3)
    save_server(whole, path)
    at_saving, states = whole.state, dict(store.states)
    play(whole, store, 3)
    other = server(chosen, VALIDATION)
    load_server(other, path)
    assert_same_arrays(other.state.optimizer, at_saving.optimizer)
    assert_same_arrays(other.state.aggregator, at_saving.aggregator)
    assert other.state.counted == at_saving.counted, "with the share of each"
    play(other, MemoryStore(states), 3)
    assert np.array_equal(other.state.model.vector, whole.state.model.vector)
    assert_same_arrays(other.state.optimizer, whole.state.optimizer)
    assert_same_arrays(other.state.aggregator, whole.state.aggregator)


def test_another_method_is_refused_with_what_differs(tmp_path: Path) -> None:
    save_server(server(FEDSPARQ), tmp_path / "server")
    newer = FEDSPARQ.named(replace(identity(FEDSPARQ), version="2"))
    for other, words in (
        (method("stc"), "now 'stc' instead of 'fedsparq'"),
        (method("fedsparq", beta=0.5), r"now beta=0\.5 instead of 0\.9"),
        (newer, "now version 2 of 'fedsparq' instead of version 1"),
        (Method(FEDSPARQ.compressor), "now '' instead of 'fedsparq'"),
    ):
        with pytest.raises(RunError, match=words):
            load_server(server(other), tmp_path / "server")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (FEDSPARQ.with_server(optimizer=Adam()), r"of fedsparq.*Momentum, not of .*\.Adam"),
        (FEDSPARQ.with_server(Sharing(lambda *_: 1.0)), r"of fedsparq.*Mean, not of sharing\.Sharing"),
    ],
    ids=["optimizer", "aggregator"],
)
def test_another_server_part_is_refused(tmp_path: Path, other: Method, words: str) -> None:
    """A method keeps its name when a part of the server is exchanged, but that part's state is another's."""
    save_server(server(FEDSPARQ), tmp_path / "server")
    with pytest.raises(RunError, match=words):
        load_server(server(other), tmp_path / "server")
