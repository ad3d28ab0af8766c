"""Two requests for one stage that reach a node at the same moment: it answers one of them, or the same to both."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from shutil import copytree, rmtree
from threading import Barrier as ThreadBarrier
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra `flower`")

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from fedsparq.errors import FedSparQError
from fedsparq.flower.records import unwrap, wrap
from fedsparq.lab.engines.flower import GridEngine
from fedsparq.lab.experiments.flower_app import client_app
from fedsparq.lab.experiments.run import run
from fedsparq.lab.specs import RunSpec, check
from fedsparq.secure.messages import Confirmed, Survivors, kind_of
from inprocess_grid import InProcessGrid

CLIENTS, TRIALS = 4, 10
PLAIN = {"method": "fedsparq-private", "clients": CLIENTS, "rounds": 1, "train_limit": 80, "test_limit": 20}
SPEC: dict[str, Any] = PLAIN | {"privacy": {"secure_sums": True}}
CONFIG: dict[str, Any] = PLAIN | {"privacy.secure_sums": True}


def context_of(node: int, states: Path) -> Context:
    """A SuperNode of `fedsparq deploy`, its states in a folder of its own."""
    config = {"partition-id": node - 100, "fedsparq-state": str(states)}
    return Context(1, node, config, RecordDict(), dict(CONFIG))


def ask(states: Path, request: bytes) -> bytes | None:
    """What client 0 answers to a request; None if it refuses."""
    config = ConfigRecord({"client": 0, "saved": 0, "dying": False})
    content = RecordDict({"arrays": wrap(request), "config": config})
    try:
        reply = client_app(Message(content, 100, MessageType.TRAIN), context_of(100, states))
    except FedSparQError:
        return None
    return unwrap(reply.content.array_records["arrays"]) or None


barrier: Any = None


def share(given: Barrier) -> None:
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 100
    globals()["barrier"] = given


def ask_together(states: Path, request: bytes) -> bytes | None:
    barrier.wait(60)
    return ask(states, request)


def two_at_once(kind: str) -> Any:
    """A pool of two that begin together, each time."""
    if kind == "threads":
        share(ThreadBarrier(2))  # type: ignore[arg-type]
        return ThreadPoolExecutor(2)
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(2, spawn, share, (spawn.Barrier(2),))


def before_signing(folder: Path) -> bytes:
    """Play a secure sum of four nodes. Client 0's state just before it is told who is alive is kept in `kept`; the
    request that tells it is returned."""
    requests = []

    def node(message: Message, context: Context) -> Message:
        request = unwrap(message.content.array_records["arrays"])
        if context.node_id == 100 and kind_of(request) == Survivors.kind:
            requests.append(request)
            copytree(folder / "node-100", folder / "kept")
        return client_app(message, context)

    apps: list[ClientApp] = [node] * CLIENTS  # type: ignore[list-item]
    grid = InProcessGrid(apps)
    grid.contexts = {node: context_of(node, folder / f"node-{node}") for node in grid.contexts}
    nodes = {node - 100: node for node in grid.contexts}
    run(check(RunSpec, SPEC), folder / "out", engine=lambda *_: GridEngine(grid, nodes))
    (request,) = requests
    return request


def trials(folder: Path) -> Iterator[Path]:
    """Client 0's state as it was kept, again and again."""
    states = folder / "trial"
    for _ in range(TRIALS):
        rmtree(states, ignore_errors=True)
        copytree(folder / "kept", states)
        yield states


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_one_client_never_signs_two_stories(tmp_path: Path, kind: str) -> None:
    request, given = before_signing(tmp_path), []
    told = Survivors.decode(request)
    gone = max(told.alive)
    lie = Survivors(told.alive - {gone}, {c: s for c, s in told.signatures.items() if c != gone}).encode()
    with two_at_once(kind) as pool:
        for trial in trials(tmp_path):
            answers = [*pool.map(partial(ask_together, trial), (request, lie)), ask(trial, request), ask(trial, lie)]
            given.append({Confirmed.decode(each).signature for each in answers if each is not None})
    assert [len(each) for each in given] == [1] * TRIALS


def test_the_same_request_twice_at_once_gets_the_same_bytes(tmp_path: Path) -> None:
    request = before_signing(tmp_path)
    with two_at_once("threads") as pool:
        for trial in trials(tmp_path):
            first, second = pool.map(partial(ask_together, trial), (request, request))
            assert first is not None
            assert first == second == ask(trial, request)
