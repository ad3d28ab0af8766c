"""The engine `flower-simulation`: each client a virtual SuperNode of Flower's, its work done by Ray's processes.

Flower wants to be the one who calls; so does a run. The simulation therefore lives in a thread of its own, and its
ServerApp waits there for what the run wants carried.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

from fedsparq.errors import MissingExtraError, RunError
from fedsparq.federate.rounds import Delivery
from fedsparq.lab.engines.engine import Asked, Engine
from fedsparq.lab.engines.worker import import_homes
from fedsparq.lab.specs import RunSpec
from fedsparq.lab.tasks import Task
from fedsparq.methods.registry import check_portable, find_recipe

try:
    import ray
    from flwr.app import ConfigRecordValues, Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from fedsparq.lab.engines.grid import GridEngine, work
except ImportError as error:
    raise MissingExtraError("the engine flower-simulation needs Flower: pip install 'fedsparq[flower]'") from error


class FlowerSimulation(Engine):
    """Clients as nodes of a Flower simulation on this machine."""

    def __init__(self, spec: RunSpec, task: Task, states: Path, workers: int = 1) -> None:
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
