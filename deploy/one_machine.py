"""A whole federation on this machine, by the scripts beside this file: SuperLink and SuperNodes, TLS and node keys.

    python deploy/one_machine.py APP [--nodes 3] [--run-config 'rounds=5'] [--node-config 'key=1'] [--folder FOLDER]

brings it up, runs a Flower app on it, shows the log and what traffic Flower counted, and takes it down. Further options
go to Flower's own commands by `--superlink=...`, `--supernode=...`, `--run=...`. If the run fails, the status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

SCRIPTS = Path(__file__).parent


class Federation:
    """The processes of one federation. Each leads a group of its own, so that it dies with all it has started."""

    def __init__(self, folder: Path, nodes: int = 3, superlink: Sequence[str] = ()) -> None:
        self.folder, self.nodes, self.superlink = folder, nodes, superlink
        self.port, self._runtime_port = free_port(), free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
            "SUPERLINK": f"127.0.0.1:{self.port}",
            "RUNTIME_PORT": str(self._runtime_port),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self) -> Federation:
        try:
            self._call(str(SCRIPTS / "keys.sh"), str(self.folder), str(self.nodes))
            self.start("superlink", str(SCRIPTS / "superlink.sh"), str(self.folder), *self.superlink)
            wait("the SuperLink", lambda: listens(self.port), 90)
            self._call(str(SCRIPTS / "connect.sh"), str(self.folder))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self.processes):
            self.kill(name)

    def start(self, name: str, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        """A process of the federation; what it says goes to FOLDER/NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=self.environment | environment, stdout=log, stderr=log, start_new_session=True
            )
        return self.processes[name]

    def node(self, number: int, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a SuperNode, or start it again with its key."""
        command = [str(SCRIPTS / "supernode.sh"), str(self.folder), str(number), str(self.nodes), *options]
        return self.start(f"node-{number}", *command, **environment)

    def online(self) -> int:
        """How many SuperNodes the SuperLink can reach."""
        return sum(node["status"] == "online" for node in self.flwr("supernode", "list", "federation")["nodes"])

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def flwr(self, *command: str) -> dict[str, Any]:
        """What a command of Flower's says, as JSON."""
        said: dict[str, Any] = json.loads(self._call("flwr", *command, "--format", "json", FLWR_HOME=self._home))
        return said

    def run(self, app: Path, config: str = "", *options: str) -> str:
        """Submit an app; returns the number of the run."""
        configured = ["--run-config", config] if config else []
        return str(self.flwr("run", str(app), "federation", *configured, *options)["run-id"])

    def status(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.flwr("ls", "federation", "--run-id", run)["runs"][0]
        return found

    def run_log(self, run: str) -> str:
        """What the run's ServerApp has said."""
        return self._call("flwr", "log", run, "federation", "--show", FLWR_HOME=self._home)

    def finish(self, run: str, seconds: float) -> dict[str, Any]:
        """Wait for a run; returns its status with the traffic that the SuperLink counted."""
        wait(f"run {run}", lambda: self.status(run)["status"].startswith("finished"), seconds, pause=3)
        status = self.status(run)
        said, nodes = self.run_log(run), f"What the nodes said is in {self.folder}/node-*.log"
        if status["status"] != "finished:completed":
            raise RunFailedError(f"the run ended as {status['status']}:\n{said[-6000:]}\n{nodes}")
        if trained_nothing(said):
            why = "Flower calls the run completed, but no node sent a result in any round: there is no trained model."
            raise RunFailedError(f"{why}\n{said[-6000:]}\n{nodes}")
        return status

    @property
    def _home(self) -> str:
        return str(self.folder / "flwr")

    def _call(self, *command: str, **environment: str) -> str:
        done = subprocess.run(
            command, env=self.environment | environment, capture_output=True, text=True, timeout=180, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout


class RunFailedError(RuntimeError):
    """A run that did not end well; the words say how."""


def trained_nothing(log: str) -> bool:
    """Whether by a ServerApp's log every round of training came back empty-handed."""
    results = re.findall(r"aggregate_train: Received (\d+) results", log)
    return bool(results) and not any(map(int, results))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait(what: str, until: Callable[[], bool], seconds: float, pause: float = 1.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(pause)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("app", type=Path)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--run-config", default="")
    parser.add_argument("--node-config", default="", help="for every node, beside partition-id and num-partitions")
    parser.add_argument("--folder", type=Path, help="where keys, logs and states go; a new temporary one if left out")
    for command, called in (("superlink", "flower-superlink"), ("supernode", "flower-supernode"), ("run", "flwr run")):
        parser.add_argument(f"--{command}", type=shlex.split, default=[], help=f"options for `{called}`, in one string")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="federation-"))
    folder.mkdir(parents=True, exist_ok=True)
    with Federation(folder.resolve(), options.nodes, options.superlink) as federation:
        for number in range(options.nodes):
            federation.node(number, *options.supernode, NODE_CONFIG=options.node_config)
        wait("the SuperNodes", lambda: federation.online() == options.nodes, 300)
        run = federation.run(options.app, options.run_config, *options.run)
        print(f"run {run} on {options.nodes} SuperNodes; keys, logs and states in {folder}")
        try:
            status = federation.finish(run, 24 * 3600)
        except RunFailedError as failed:
            sys.exit(str(failed))
        print(federation.run_log(run))
        traffic = status["network-traffic"]
        print(f"Flower counted {traffic['inbound-bytes']:,} bytes up and {traffic['outbound-bytes']:,} down")


if __name__ == "__main__":
    main()
