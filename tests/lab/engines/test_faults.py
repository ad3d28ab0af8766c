"""Faults do what they say, the same ones again for the same seed; and a run under all of them survives being killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedsparq import Layout, decode, method, resolver
from fedsparq.errors import WireError
from fedsparq.federate.client import Answer, Client, Trained
from fedsparq.federate.messages import FullWanted, Reply
from fedsparq.federate.model import Model
from fedsparq.federate.rounds import Delivery
from fedsparq.federate.server import Server
from fedsparq.federate.store import MemoryStore
from fedsparq.lab.engines.engine import Asked, Engine
from fedsparq.lab.engines.faults import FaultyEngine, ServerCrashError
from fedsparq.lab.experiments.run import run
from fedsparq.lab.specs import FaultSpec, RunSpec, check

LAYOUT = Layout.of({"weight": (30,)})
CLIENTS = 10


class Honest(Engine):
    """An engine in which nothing goes wrong."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.heard: list[dict[int, bytes]] = []

    def exchange(self, asked: Asked) -> Iterator[Delivery]:
        self.heard.append(dict(asked.broadcasts))
        for client in sorted(asked.broadcasts):
            update = np.random.default_rng([asked.round, client]).normal(size=LAYOUT.size).astype(np.float32)
            worker = Client(client, LAYOUT, lambda *_, update=update: Trained(update, 10), self.store, resolver())
            answer = worker.answer(asked.broadcasts[client])
            yield Delivery(client, Answer(None) if client in asked.dying else answer)


def exchange(folder: Path, rounds: int = 1, seed: int = 0, **faults: Any) -> list[list[Delivery]]:
    """What arrives in each of some rounds, whose server counts nothing."""
    server = Server(LAYOUT, method("fedsparq"), Model(np.zeros(LAYOUT.size, np.float32)))
    engine = FaultyEngine(Honest(), FaultSpec(**faults), LAYOUT, CLIENTS, seed, folder)
    arrived = []
    for number in range(1, rounds + 1):
        server.open_round(range(CLIENTS))
        requests = {client: server.broadcast(client) for client in range(CLIENTS)}
        arrived.append(list(engine.exchange(Asked(number, requests, number - 1))))
        server.close_round()
    return arrived


def messages(deliveries: list[Delivery]) -> list[bytes | None]:
    return [delivery.answer.message for delivery in deliveries]


def remarks(deliveries: list[Delivery]) -> list[str]:
    return [remark for delivery in deliveries for remark in delivery.answer.remarks]


def test_without_faults_all_arrives(tmp_path: Path) -> None:
    (arrived,) = exchange(tmp_path)
    assert [delivery.client for delivery in arrived] == list(range(CLIENTS))
    assert all(Reply.decode(message).round == 1 for message in messages(arrived))


@pytest.mark.parametrize(
    ("fault", "remark", "sent"),
    [
        ("drop", "answer lost on the way", True),
        ("late", "answer delayed beyond the round", True),
        ("crash_after", "died before it sent its answer", False),
        ("crash_before", "died before its state was saved", False),
    ],
)
def test_replies_that_do_not_arrive(tmp_path: Path, fault: str, remark: str, sent: bool) -> None:
    (arrived,) = exchange(tmp_path, **{fault: 1.0})
    assert messages(arrived) == [None] * CLIENTS
    assert remarks(arrived) == [remark] * CLIENTS
    assert all(bool(delivery.answer.sent) == sent for delivery in arrived)


def test_late_replies_arrive_in_the_next_round_and_are_not_weighed_again(tmp_path: Path) -> None:
    first, second = exchange(tmp_path, rounds=2, late=1.0)
    assert len(first) == CLIENTS
    assert [delivery.client for delivery in second] == list(range(CLIENTS)) * 2
    for delivery in second[:CLIENTS]:
        assert delivery.answer.message is not None
        assert Reply.decode(delivery.answer.message).round == 1
        assert (delivery.answer.sent, delivery.answer.train_seconds) == (0, 0)


def test_doubled_replies(tmp_path: Path) -> None:
    (arrived,) = exchange(tmp_path, duplicate=1.0)
    assert messages(arrived)[::2] == messages(arrived)[1::2]
    assert [bool(delivery.answer.sent) for delivery in arrived] == [True, False] * CLIENTS


def test_flips_damage_either_way(tmp_path: Path) -> None:
    (arrived,) = exchange(tmp_path, flip=0.5, seed=3)
    unread = [text for text in remarks(arrived) if "broadcast could not be read" in text]
    damaged = 0
    for message in filter(None, messages(arrived)):
        try:
            decode(Reply.decode(message).blob, LAYOUT)
        except WireError:
            damaged += 1
    assert 0 < len(unread) < CLIENTS
    assert 0 < damaged < CLIENTS - len(unread)


def test_chances_are_what_the_spec_says(tmp_path: Path) -> None:
    rounds = exchange(tmp_path, rounds=60, drop=0.3)
    lost = sum(message is None for arrived in rounds for message in messages(arrived))
    assert abs(lost / (60 * CLIENTS) - 0.3) < 4 * np.sqrt(0.3 * 0.7 / (60 * CLIENTS))


@pytest.mark.parametrize("kind", ["random", "nan", "scale", "replay"])
def test_hostile_clients_lie(tmp_path: Path, kind: str) -> None:
    honest = exchange(tmp_path / "a", rounds=2)[1]
    engine = FaultyEngine(Honest(), FaultSpec(hostile=0.2), LAYOUT, CLIENTS, 0, tmp_path)
    assert len(engine.attack.hostile) == 2
    lies = exchange(tmp_path / "b", rounds=2, hostile=0.2, hostile_kinds=(kind,), hostile_scale=7.0)[1]
    for true, said in zip(honest, lies, strict=True):
        assert true.answer.message is not None
        assert said.answer.message is not None
        if true.client not in engine.attack.hostile:
            assert true.answer.message == said.answer.message
            continue
        assert true.answer.message != said.answer.message
        match kind:
            case "scale":
                sent = [decode(Reply.decode(m.answer.message).blob, LAYOUT).dense() for m in (true, said)]
                np.testing.assert_allclose(sent[1], 7 * sent[0], rtol=1e-6)
            case "replay":
                assert Reply.decode(said.answer.message).round == 1
            case "nan":
                with pytest.raises(WireError, match="not a number"):
                    decode(Reply.decode(said.answer.message).blob, LAYOUT)


def test_request_for_the_whole_model_cannot_be_forged_into_a_reply(tmp_path: Path) -> None:
    class Asking(Honest):
        def exchange(self, asked: Asked) -> Iterator[Delivery]:
            wanted = Answer(FullWanted(asked.round).encode())
            yield from (Delivery(client, wanted) for client in sorted(asked.broadcasts))

    faults = FaultSpec(hostile=1.0, hostile_kinds=("nan", "scale"))
    arrived = list(FaultyEngine(Asking(), faults, LAYOUT, 2, 0, tmp_path).exchange(Asked(1, {0: b"", 1: b""}, 0)))
    assert messages(arrived) == [FullWanted(1).encode()] * 2


def test_asking_again_in_a_round_loses_and_repeats_nothing_that_is_on_its_way(tmp_path: Path) -> None:
    class Prompt(Engine):
        def exchange(self, asked: Asked) -> Iterator[Delivery]:
            yield from (Delivery(client, Answer(message)) for client, message in asked.broadcasts.items())

    engine = FaultyEngine(Prompt(), FaultSpec(late=1.0), LAYOUT, 3, 0, tmp_path)
    came = []
    for number, clients in ((1, "abc"), (2, "de"), (2, "f"), (3, "g")):
        asked = Asked(number, {client: text.encode() for client, text in enumerate(clients)}, number - 1)
        came.append([delivery.answer.message for delivery in engine.exchange(asked) if delivery.answer.message])
    assert came == [[], [b"a", b"b", b"c"], [], [b"d", b"e", b"f"]]


def until_crash(answers: Iterator[Delivery]) -> list[Delivery]:
    arrived = []
    with suppress(ServerCrashError):
        for delivery in answers:
            arrived.append(delivery)
        pytest.fail("the server did not crash")
    return arrived


def test_server_crashes_once_at_some_step_and_clients_answer_again(tmp_path: Path) -> None:
    steps = set()
    for seed in range(30):
        server = Server(LAYOUT, method("fedsparq"), Model(np.zeros(LAYOUT.size, np.float32)))
        engine = FaultyEngine(Honest(), FaultSpec(server_crash=1.0), LAYOUT, 3, seed, tmp_path / str(seed))
        server.open_round(range(3))
        requests = {client: server.broadcast(client) for client in range(3)}
        before = until_crash(engine.exchange(Asked(1, requests, 0)))
        steps.add(len(before))
        again = list(engine.exchange(Asked(1, requests, 0)))
        assert remarks(again) == ["broadcast came again: same reply sent again"] * 3
        assert messages(before) == messages(again)[: len(before)]
    assert steps == {0, 1, 2, 3}


EVERYTHING = {
    "drop": 0.2,
    "late": 0.2,
    "duplicate": 0.2,
    "flip": 0.1,
    "crash_before": 0.1,
    "crash_after": 0.1,
    "hostile": 0.2,
}


def test_a_killed_process_does_not_change_what_is_on_its_way(tmp_path: Path) -> None:
    whole = exchange(tmp_path / "whole", rounds=8, **EVERYTHING)
    server = Server(LAYOUT, method("fedsparq"), Model(np.zeros(LAYOUT.size, np.float32)))
    inner = Honest()
    for number in range(1, 9):
        engine = FaultyEngine(inner, FaultSpec(**EVERYTHING), LAYOUT, CLIENTS, 0, tmp_path / "killed")
        server.open_round(range(CLIENTS))
        requests = {client: server.broadcast(client) for client in range(CLIENTS)}
        states = dict(inner.store.states)
        half = engine.exchange(Asked(number, requests, number - 1))
        next(half)
        del half, engine
        inner.store.states = states
        engine = FaultyEngine(inner, FaultSpec(**EVERYTHING), LAYOUT, CLIENTS, 0, tmp_path / "killed")
        arrived = list(engine.exchange(Asked(number, requests, number - 1)))
        assert messages(arrived) == messages(whole[number - 1])
        assert remarks(arrived) == remarks(whole[number - 1])
        server.close_round()


def lines(folder: Path) -> list[dict[str, Any]]:
    """rounds.jsonl, apart from seconds."""
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for record in records:
        record.pop("seconds")
    return records


def everything(**changes: Any) -> dict[str, Any]:
    return {
        "dataset": "mnist-mini",
        "partition": "dirichlet",
        "clients": 10,
        "fraction": 0.8,
        "downlink": "lattice",
        "train_limit": 2000,
        "test_limit": 500,
        "training": {"steps": 2},
        "server": {"min_replies": 2, "norm_limit": "3x median"},
        "faults": EVERYTHING | {"server_crash": 0.2},
    } | changes


@pytest.mark.parametrize("every", [1, 3])
def test_run_under_every_fault_is_the_same_in_any_way_it_is_run(tmp_path: Path, every: int) -> None:
    spec = check(RunSpec, everything(rounds=5))
    run(spec, tmp_path / "whole")
    if every == 1:
        run(spec, tmp_path / "workers", workers=2)
        assert lines(tmp_path / "workers") == lines(tmp_path / "whole")

    class StopError(Exception):
        pass

    def watch(record: Any) -> None:
        if record.round == 4:
            raise StopError

    with pytest.raises(StopError):
        run(spec, tmp_path / "stopped", callbacks=[watch], checkpoint_every=every)
    run(spec, tmp_path / "stopped", resume=True)
    expected = lines(tmp_path / "whole")
    found = lines(tmp_path / "stopped")
    if every > 1:
        expected, found = ([_without_repeats(record) for record in side] for side in (expected, found))
    assert found == expected


def _without_repeats(record: dict[str, Any]) -> dict[str, Any]:
    """A server that crashed long after its checkpoint asks again for rounds that clients have forgotten by then."""
    events = [event for event in record["events"] if "came again" not in event["reason"]]
    return record | {"events": events}


@pytest.mark.slow
def test_two_hundred_rounds_under_every_fault_killed_fifty_times(tmp_path: Path) -> None:
    spec = everything(rounds=200, train_limit=10_000, test_limit=2000, training={"steps": 4})
    settings = tmp_path / "spec.toml"
    settings.write_text(check(RunSpec, spec).to_toml())
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    command = [sys.executable, "-m", "fedsparq", "run", str(settings), "--resume", "--out"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    subprocess.run([*command, str(whole)], check=True, stdout=subprocess.DEVNULL, env=environment)
    a_round = (time.monotonic() - began) / 200
    rng = np.random.default_rng()
    kills = 0
    while kills < 50:
        process = subprocess.Popen([*command, str(killed)], stdout=subprocess.DEVNULL, env=environment)
        reached = rounds_in(killed) + 1
        while process.poll() is None and rounds_in(killed) < reached:
            time.sleep(0.002)
        assert process.poll() is None, "it must not come to its end before it was killed fifty times"
        time.sleep(rng.uniform(0, 3 * a_round))
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    subprocess.run([*command, str(killed)], check=True, stdout=subprocess.DEVNULL, env=environment)
    assert lines(killed) == lines(whole)
    models = [load_file(folder / "model.safetensors") for folder in (whole, killed)]
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])
    assert not list(killed.rglob("*.unreadable*"))
    assert not any("could not be read (" in event["reason"] for line in lines(killed) for event in line["events"])


def rounds_in(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
