"""The engine `flower-simulation`: each client a virtual SuperNode of Flower's, its work done by Ray's processes.

Flower wants to be the one who calls; so does a run. The simulation therefore lives in a thread of its own, and its
ServerApp waits there for what the run wants carried.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from types import TracebackType

from fedsparq.engines.desk import Task
from fedsparq.engines.local import Delivery
from fedsparq.errors import MissingExtraError, RunError

try:
    import ray
    from flwr.app import ConfigRecordValues, Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from fedsparq.flower.carrier import GridEngine, work
except ImportError as error:
    raise MissingExtraError("the engine flower-simulation needs Flower: pip install 'fedsparq[flower]'") from error

Request = tuple[int, Mapping[int, bytes], int, frozenset[int]]


class FlowerSimulation:
    """Clients as nodes of a Flower simulation on this machine."""

    def __init__(self, task: Task, states: Path, workers: int = 1) -> None:
        self._task, self._states, self._workers = task, states, max(1, min(workers, task.spec.clients))
        self._requests: Queue[Request | None] = Queue()
        self._answers: Queue[list[Delivery] | BaseException] = Queue()
        self._thread = Thread(target=self._simulate, name="flower-simulation", daemon=True)

    def __enter__(self) -> FlowerSimulation:
        self._environment = {name: os.environ.get(name) for name in ("PYTHONPATH", "RAY_USAGE_STATS_ENABLED")}
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        self._level = logging.getLogger("flwr").level
        logging.getLogger("flwr").setLevel(logging.ERROR)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._requests.put(None)
        self._thread.join(timeout=60)
        ray.shutdown()
        logging.getLogger("flwr").setLevel(self._level)
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def exchange(
        self, number: int, requests: Mapping[int, bytes], saved: int, dying: frozenset[int] = frozenset()
    ) -> Iterator[Delivery]:
        self._requests.put((number, requests, saved, dying))
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
        resources: dict[str, ConfigRecordValues] = {"num_cpus": self._workers, "_node_ip_address": "127.0.0.1"}
        try:
            run_simulation(
                self._server_app(),
                client_app(self._task.spec.model_dump_json(), str(self._states)),
                num_supernodes=self._task.spec.clients,
                backend_config={"init_args": resources, "client_resources": {"num_cpus": 1}},
            )
        except BaseException as error:
            self._answers.put(error)

    def _server_app(self) -> ServerApp:
        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            clients = self._task.spec.clients
            while len(nodes := sorted(grid.get_node_ids())) < clients:
                time.sleep(0.05)
            engine = GridEngine(grid, dict(enumerate(nodes)), strict=True)
            while (request := self._requests.get()) is not None:
                self._answers.put(list(engine.exchange(*request)))

        return app


def client_app(spec: str, states: str) -> ClientApp:
    """Does the work of whichever client a message names; states are in a folder that all processes share."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return work(message, spec, Path(states))

    return app
