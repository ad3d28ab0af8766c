"""A ready Flower app: any experiment on real nodes. `fedsparq deploy` makes a folder that `flwr run` takes.

The run's configuration is the experiment's spec, key by key. Each SuperNode names its part of the data:
``--node-config 'partition-id=0'``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from logging import INFO
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from fedsparq.engines.desk import Task
from fedsparq.errors import OptionError
from fedsparq.experiments.results import Round
from fedsparq.experiments.run import run
from fedsparq.experiments.spec import RunSpec, check
from fedsparq.flower.carrier import GridEngine, work
from fedsparq.flower.stores import NODE_KEY, default_folder

OUT = "out"
"""The key of the run's configuration for the folder that its results go to, on the machine of the ServerApp."""

PARTITION = "partition-id"
_ANSWER_WITHIN = 3600.0
_PATIENCE = 3.0

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the experiment over the nodes that are there, once there are enough."""
    spec = spec_of(context.run_config)
    out = Path(str(context.run_config.get(OUT) or default_folder() / "runs" / str(context.run_id)))
    nodes = _find_clients(grid, spec.clients)
    timeout = spec.server.deadline or _ANSWER_WITHIN

    def carrier(task: Task, states: Path) -> GridEngine:
        return GridEngine(grid, nodes, timeout=timeout)

    log(INFO, "fedsparq: %s on %s, results in %s", spec.label, spec.dataset, out)
    run(spec, out, carrier=carrier, watch=_tell)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Do this node's part of a round. What it must remember is in its own folder."""
    root = Path(str(context.node_config.get(NODE_KEY) or default_folder()))
    states = root / f"run-{context.run_id}"
    return work(message, spec_of(context.run_config).model_dump_json(), states, _partition(context))


@client_app.query()
def introduce(message: Message, context: Context) -> Message:
    """Say which part of the data this node has."""
    return Message(RecordDict({"about": ConfigRecord({PARTITION: _partition(context)})}), reply_to=message)


def spec_of(config: Mapping[str, Any]) -> RunSpec:
    """The spec in a run's configuration, whose nested keys Flower joins by dots."""
    table: dict[str, Any] = {}
    for key, value in config.items():
        if key != OUT:
            *path, last = key.split(".")
            place = table
            for part in path:
                place = place.setdefault(part, {})
            place[last] = value
    return check(RunSpec, table, "the run's configuration")


def _partition(context: Context) -> int:
    number = context.node_config.get(PARTITION)
    if not isinstance(number, int) or number < 0:
        raise OptionError(
            "this SuperNode does not say which part of the data is its own; "
            "start it with --node-config 'partition-id=0', each with another number"
        )
    return number


def _find_clients(grid: Grid, count: int) -> dict[int, int]:
    """The node of each client. Nodes are asked until all parts of the data are there."""
    known: dict[int, int] = {}
    clients: dict[int, int] = {}
    while len(clients) < count:
        strangers = [node for node in grid.get_node_ids() if node not in known]
        questions = [Message(RecordDict(), node, MessageType.QUERY) for node in strangers]
        for reply in grid.send_and_receive(questions, timeout=60) if questions else ():
            if reply.has_error():
                raise OptionError(f"node {reply.metadata.src_node_id}: {reply.error.reason}")
            node, number = reply.metadata.src_node_id, reply.content.config_records["about"][PARTITION]
            if not isinstance(number, int) or number in clients:
                raise OptionError(f"two SuperNodes have partition-id={number!r}; each needs one of its own")
            known[node] = number
            if number < count:
                clients[number] = node
        missing = sorted(set(range(count)) - set(clients))
        if missing:
            log(INFO, "fedsparq: waiting for the SuperNodes with partition-id %s", ", ".join(map(str, missing)))
            time.sleep(_PATIENCE)
    return clients


def _tell(record: Round) -> None:
    log(
        INFO,
        "fedsparq: round %d, accuracy %.2f %%, %d clients, %.0f bytes up and %.0f down a client",
        record.round,
        record.accuracy,
        record.clients,
        record.upload_bytes,
        record.download_bytes,
    )
