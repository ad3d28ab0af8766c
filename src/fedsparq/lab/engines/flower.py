"""Engines over Flower: the same broadcasts and replies, bit for bit, as messages of a Flower grid.

`GridEngine` is for real nodes. `FlowerSimulation`, the engine `flower-simulation`, makes each client a SuperNode of
Flower's simulation, its work done by Ray's processes. Flower wants to be the caller; so does a run. The simulation
therefore lives in a thread of its own, and its ServerApp waits there for the messages of the run.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

from fedsparq.errors import MissingExtraError, RunError, WireError
from fedsparq.federate.client import Answer
from fedsparq.federate.rounds import Delivery
from fedsparq.flower.records import unwrap, wrap
from fedsparq.lab.engines.engine import Asked, Engine, import_homes, worker_of
from fedsparq.lab.specs import RunSpec
from fedsparq.lab.tasks import Task
from fedsparq.lab.tasks.devices import prepare_process
from fedsparq.methods.registry import check_portable, find_recipe
from fedsparq.threads import only_one

try:
    from flwr.app import ConfigRecord, ConfigRecordValues, Context, Message, MessageType, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise MissingExtraError("the engine flower-simulation needs Flower: pip install 'fedsparq[flower]'") from error

_MOST_SAID = 500
"""So many characters of what a node says of itself are kept."""
_MOST_SECONDS = 1e6


class GridEngine(Engine):
    """Carries a round's messages over a grid. `nodes` tells which node does a client's work.

    A node that fails leaves a remark and no answer; in a `strict` engine, where no node can be away, it ends the run.
    """

    def __init__(
        self, grid: Grid, nodes: Mapping[int, int], *, timeout: float | None = None, strict: bool = False
    ) -> None:
        self._grid, self._nodes, self._timeout, self._strict = grid, dict(nodes), timeout, strict
        self._clients = {node: client for client, node in self._nodes.items()}

    def exchange(self, asked: Asked) -> Iterator[Delivery]:
        messages = []
        for client, data in sorted(asked.broadcasts.items()):
            config = ConfigRecord({"client": client, "saved": asked.saved, "dying": client in asked.dying})
            content = RecordDict({"arrays": wrap(data), "config": config})
            messages.append(Message(content, self._nodes[client], MessageType.TRAIN))
        answers = dict.fromkeys(sorted(asked.broadcasts), Answer(None, ("no answer in time",)))
        for reply in self._grid.send_and_receive(messages, timeout=self._timeout):
            sender = self._clients.get(reply.metadata.src_node_id)
            if self._strict and reply.has_error():
                raise RunError(f"client {sender} failed: {reply.error.reason}")
            if sender in answers:
                try:
                    answers[sender] = _answer(reply)
                except Exception as error:  # whatever one node's answer does to its reader, the others' are read
                    answers[sender] = Answer(None, (f"refused: its answer cannot be read: {error!r}"[:_MOST_SAID],))
        for client, answer in answers.items():
            yield Delivery(client, answer)


def work(message: Message, spec: str, states: Path, client: int | None = None, keys: Path | None = None) -> Message:
    """A node's part: do the work of a client, the one named in the message unless the node has its own."""
    prepare_process()
    only_one()
    config = message.content.config_records["config"]
    data = unwrap(message.content.array_records["arrays"])
    if data is None:
        raise WireError("this message is not a broadcast of FedSparQ's")
    number = _count(config["client"]) if client is None else client
    answer = worker_of(spec, states, keys).answer(number, data, _count(config["saved"]), bool(config["dying"]))
    about: dict[str, ConfigRecordValues] = {"silent": answer.message is None}
    about |= {"remarks": list(answer.remarks), "seconds": [answer.train_seconds, answer.compress_seconds]}
    if answer.metrics:
        about |= {"metrics": list(answer.metrics), "measured": list(map(float, answer.metrics.values()))}
    return Message(RecordDict({"arrays": wrap(answer.message or b""), "about": ConfigRecord(about)}), reply_to=message)


def _count(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**32:
        raise WireError(f"a message names {str(value)[:80]} where a count belongs")
    return value


def _answer(reply: Message) -> Answer:
    """Read a node's answer. How many bytes it has is seen, not believed."""
    if reply.has_error():
        return Answer(None, (f"no answer: {(reply.error.reason or 'the node failed').strip()}"[:_MOST_SAID],))
    about = reply.content.config_records["about"]
    data = None if about["silent"] else unwrap(reply.content.array_records["arrays"])
    if data is None and not about["silent"]:
        raise WireError("its array is not one of FedSparQ's")
    said = tuple(remark[:_MOST_SAID] for remark in _listed(about["remarks"], str))
    metrics = dict(
        zip(_listed(about.get("metrics", []), str), _listed(about.get("measured", []), int | float), strict=True)
    )
    train_seconds, compress_seconds = _listed(about["seconds"], int | float)
    if not all(0 <= spent <= _MOST_SECONDS for spent in (train_seconds, compress_seconds)):
        raise WireError(f"it says that it took {train_seconds} and {compress_seconds} seconds")
    return Answer(data, said, len(data or b""), train_seconds, compress_seconds, metrics)


def _listed(values: object, kind: Any) -> list[Any]:
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise WireError(f"{str(values)[:80]} is not a list of {kind}")
    return values


class FlowerSimulation(Engine):
    """Clients as nodes of a Flower simulation on this machine."""

    def __init__(self, spec: RunSpec, task: Task, states: Path, workers: int = 1) -> None:
        if find_spec("ray") is None:
            raise MissingExtraError("the engine flower-simulation needs Ray: pip install 'fedsparq[flower]'")
        check_portable(spec.chosen_method(), "a process of Ray's")
        self._spec, self._states, self._workers = spec, states, max(1, min(workers, spec.clients))
        self._requests: Queue[Asked | None] = Queue()
        self._answers: Queue[list[Delivery] | BaseException] = Queue()
        self._thread = Thread(target=self._simulate, name="flower-simulation", daemon=True)

    def __enter__(self) -> Engine:
        self._environment = {name: os.environ.get(name) for name in ("PYTHONPATH", "RAY_USAGE_STATS_ENABLED")}
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        self._level = logging.getLogger("flwr").level
        logging.getLogger("flwr").setLevel(logging.ERROR)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        import ray

        self._requests.put(None)
        self._thread.join(timeout=60)
        ray.shutdown()
        logging.getLogger("flwr").setLevel(self._level)
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def exchange(self, asked: Asked) -> Iterator[Delivery]:
        self._requests.put(asked)
        while True:
            try:
                answers = self._answers.get(timeout=1)
            except Empty:
                if self._thread.is_alive():
                    continue
                answers = RunError("the Flower simulation ended before the run did")
            if isinstance(answers, BaseException):
                raise RunError(f"the Flower simulation failed: {answers}") from answers
            yield from answers
            return

    def _simulate(self) -> None:
        from flwr.simulation import run_simulation

        resources: dict[str, ConfigRecordValues] = {"num_cpus": self._workers, "_node_ip_address": "127.0.0.1"}
        try:
            run_simulation(
                self._server_app(),
                client_app(self._spec, self._states, os.getcwd()),
                num_supernodes=self._spec.clients,
                backend_config={"init_args": resources, "client_resources": {"num_cpus": 1}},
            )
        except BaseException as error:
            self._answers.put(error)

    def _server_app(self) -> ServerApp:
        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            while len(nodes := sorted(grid.get_node_ids())) < self._spec.clients:
                time.sleep(0.05)
            engine = GridEngine(grid, dict(enumerate(nodes)), strict=True)
            while (asked := self._requests.get()) is not None:
                self._answers.put(list(engine.exchange(asked)))

        return app


def client_app(spec: RunSpec, states: Path, folder: str) -> ClientApp:
    """Does the work of whichever client a message names; states are in a folder that all processes share.

    A user's own modules are found in `folder` too, wherever the process was started.
    """
    app, text, homes = ClientApp(), spec.model_dump_json(), [find_recipe(spec.method).__module__]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if folder not in sys.path:
            sys.path.append(folder)
        import_homes(homes)
        return work(message, text, states)

    return app
