"""A server as a file: it goes on as if nothing had happened."""

from pathlib import Path

import numpy as np
import pytest
from small_federation import FEDSPARQ, LAYOUT, client, server, vector

from fedsparq.compress.method import method
from fedsparq.errors import RunError
from fedsparq.federate.checkpoint import load_server, save_server
from fedsparq.federate.rules import Rules
from fedsparq.federate.server import Server
from fedsparq.federate.store import MemoryStore
from fedsparq.layout import Layout

RULES = Rules(norm_limit="3x median")


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
    whole, store = server(FEDSPARQ, RULES, downlink), MemoryStore()
    play(whole, store, rounds)
    save_server(whole, path)
    states = dict(store.states)
    play(whole, store, 3)
    for other in (server(FEDSPARQ, RULES, downlink), whole):
        load_server(other, path)
        assert other.state.round == rounds
        resumed = MemoryStore(dict(states))
        play(other, resumed, 3)
        assert np.array_equal(other.state.model.vector, whole.state.model.vector)
        assert np.array_equal(other.state.velocity, whole.state.velocity)
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
        load_server(Server.start(other, FEDSPARQ, Model(vector(0, other))), tmp_path / "server")
    assert LAYOUT.size == other.size
