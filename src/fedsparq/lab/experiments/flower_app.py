"""A ready Flower app: any experiment on real nodes. `fedsparq deploy` makes a folder that `flwr run` takes.

The run's configuration is the experiment's spec, key by key. Each SuperNode names its part of the data:
``--node-config 'partition-id=0'``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from fedsparq.errors import OptionError
from fedsparq.flower.stores import NODE_KEY, default_folder
from fedsparq.lab.engines.flower import GridEngine, work
from fedsparq.lab.experiments.run import run
from fedsparq.lab.records import Round
from fedsparq.lab.specs import RunSpec, check

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
    nodes = find_clients(grid, spec.clients)
    engine = GridEngine(grid, nodes, timeout=spec.server.deadline or _ANSWER_WITHIN)
    log(INFO, "fedsparq: %s on %s, results in %s", spec.label, spec.dataset, out)
    run(spec, out, engine=lambda *_: engine, callbacks=[_tell])


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Do this node's part of a round. What it must remember is in its own folder."""
    root = Path(str(context.node_config.get(NODE_KEY) or default_folder()))
    states = root / f"run-{context.run_id}"
    spec, client = spec_of(context.run_config).model_dump_json(), _partition(context)
    return work(message, spec, states, client, keys=root / "keys")


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
            inner = table
            for part in path:
                inner = inner.setdefault(part, {})
            inner[last] = value
    return check(RunSpec, table, "the run's configuration")


def _partition(context: Context) -> int:
    number = context.node_config.get(PARTITION)
    if not isinstance(number, int) or number < 0:
        raise OptionError(
            "this SuperNode does not say which part of the data is its own; "
            "start it with --node-config 'partition-id=0', each with another number"
        )
    return number


def find_clients(grid: Grid, count: int) -> dict[int, int]:
    """The node of each client. Nodes are asked until all parts of the data are there."""
    known: dict[int, int] = {}
    clients: dict[int, int] = {}
    while len(clients) < count:
        strangers = [node for node in grid.get_node_ids() if node not in known]
        questions = [Message(RecordDict(), node, MessageType.QUERY) for node in strangers]
        for reply in grid.send_and_receive(questions, timeout=60) if questions else ():
            if reply.has_error():
                raise OptionError(f"node {reply.metadata.src_node_id}: {reply.error.reason}")
            node = reply.metadata.src_node_id
            number = reply.content.config_records.get("about", ConfigRecord()).get(PARTITION)
            if type(number) is not int or number < 0:
                log(WARNING, "fedsparq: node %d does not say which part of the data it has: left out", node)
                known[node] = -1
                continue
            if number in clients:
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
    reached = f"loss {record.loss:.4g}" if math.isnan(record.accuracy) else f"accuracy {record.accuracy:.2f} %"
    result = f"round {record.round}, {reached}, {record.clients} clients"
    bytes_a_client = f"{record.upload_bytes:.0f} bytes up and {record.download_bytes:.0f} down a client"
    log(INFO, "fedsparq: %s, %s", result, bytes_a_client)
