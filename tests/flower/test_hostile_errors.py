"""A node that says in its error text how far it is: no number of its own making reaches the server or other nodes."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.serverapp.strategy import FedAvg
from toy import client_app, model, values

from fedsparq.flower import Compressed, FedSparQ, compress
from inprocess_grid import InProcessGrid

HOSTILE = 102
ROUNDS = 3
CLAIMS = [str(2**32), str(2**32 - 3), str(2**32 - 1), str(10**9), "9" * 5000, "-1", "x", ""]
MAKE = {
    "compressed": lambda **more: Compressed(FedAvg(fraction_evaluate=0.0, min_train_nodes=2), **more),
    "own": lambda **more: FedSparQ(**more),
}


def play(make, folder: Path, claim: str | None, checkpoint: bool, rounds: int = ROUNDS):
    """A run of a federation with a name; one node of three may answer each message with a claim."""

    def fate(reply: Message) -> Message:
        if claim is None or reply.metadata.src_node_id != HOSTILE:
            return reply
        text = f"fedsparq: fedsparq behind: {claim}: the message is out of date"
        error = Message(Error(0, text), reply_to=reply)
        error.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
        error.metadata.__dict__["_src_node_id"] = HOSTILE
        return error

    more = {"checkpoint": folder / "server"} if checkpoint else {}
    strategy = make(federation="hospitals", **more)
    grid = InProcessGrid([client_app(compress(state=folder / "nodes"))] * 3, fate=fate)
    result = strategy.start(grid, model(), num_rounds=rounds, timeout=1)
    return strategy.rounds, values(result.arrays)


def stored_rounds(folder: Path) -> list[int]:
    return [int(path.stem) for path in (folder / "nodes").rglob("client-*/*.safetensors")]


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda text: text[:12] or "nothing")
@pytest.mark.parametrize("kind", MAKE)
def test_the_run_and_the_next_one_go_on(kind, claim, checkpoint, tmp_path):
    rounds, arrays = play(MAKE[kind], tmp_path, claim, checkpoint)
    assert [len({100, 101} & set(each.counted)) for each in rounds] == [2] * ROUNDS
    assert all(np.isfinite(array).all() for array in arrays.values())
    assert any(event.client == HOSTILE for each in rounds for event in each.events)
    assert max(stored_rounds(tmp_path)) <= ROUNDS
    assert max(each.round for each in rounds) <= ROUNDS
    again, _ = play(MAKE[kind], tmp_path, None, checkpoint, 2 * ROUNDS)
    assert set(again[-1].counted) == {100, 101, 102}
    assert max(stored_rounds(tmp_path)) <= 3 * ROUNDS


def test_a_run_that_knows_nothing_of_an_earlier_one_is_answered_from_its_first_round_on(tmp_path):
    """The nodes' states are of an earlier run of the same name, whose rounds had the same numbers: what was in flight
    there is not an answer here, and is not lost."""
    play(MAKE["compressed"], tmp_path, None, False, 1)
    rounds, _ = play(MAKE["compressed"], tmp_path, None, False, 2)
    assert [set(each.counted) for each in rounds] == [{100, 101, 102}] * 2
    assert not any("sent again" in event.reason for each in rounds for event in each.events)


def test_an_error_text_of_megabytes_is_cut_before_anybody_logs_it(tmp_path, caplog):
    with caplog.at_level(0, "flwr"):
        rounds, _ = play(MAKE["compressed"], tmp_path, "9" * 5_000_000, False)
    assert max(len(record.getMessage()) for record in caplog.records) < 10_000
    assert all(len(event.reason) < 10_000 for each in rounds for event in each.events)


@pytest.mark.parametrize("kind", MAKE)
def test_the_log_names_the_node_on_one_line_whatever_it_says(kind, tmp_path, caplog):
    with caplog.at_level(0, "flwr"):
        play(MAKE[kind], tmp_path, "\x1b[2J\r\nnode 100 has failed", False)
    ours = [text for record in caplog.records if (text := record.getMessage()).startswith("fedsparq: node ")]
    assert len(ours) == ROUNDS
    assert all(text.startswith(f"fedsparq: node {HOSTILE} ") and text.isprintable() for text in ours)
