"""The toy federation, in which the last node answers each round with other rubbish. It finds `toy` and `rubbish` on
the path.
"""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from rubbish import PACKED, PLAIN
from toy import model, step

from fedsparq.flower import FedSparQ, compress

NODES, HOSTILE = 3, 2
ERRORS = ("fedsparq: fedsparq behind: 4294967293: x", "x" * 1_000_000, "\x1b[2J\r\n\x07[" + "[" * 5000)
_PLAIN = (
    "garbage", "no bytes", "wrong inner shape", "objects", "a header nested too deep", "an endless shape",
    "a foreign kind", "not a number", "an array is missing", "no arrays", "examples are a list", "endless examples",
)  # fmt: skip
_PACKED = ("no update", "half an update", "garbage", "a flipped bit", "garbage beside")
RUBBISH = [*((False, PLAIN[name]) for name in _PLAIN), *((True, PACKED[name]) for name in _PACKED), *ERRORS]
"""One for each round: an error text, or a change of a reply that is compressed or not."""

compressed = compress()
client_app = ClientApp()
server_app = ServerApp()


def lie(message: Message, context: Context, call_next) -> Message:
    number = int(message.content["config"]["server-round"])
    if context.node_config["partition-id"] != HOSTILE:
        return compressed(message, context, call_next)
    folder = Path(context.run_config["folder"])
    (folder / "hostile").write_text(str(context.node_id))
    rubbish = RUBBISH[number - 1]
    if isinstance(rubbish, str):
        return Message(Error(0, rubbish), reply_to=message)
    packed, change = rubbish
    reply = compressed(message, context, call_next) if packed else call_next(message, context)
    reply.content = RecordDict({**reply.content, **change(reply.content)})
    return reply


@client_app.train(mods=[lie])
def train(message: Message, context: Context) -> Message:
    after = step(message.content["arrays"], int(context.node_config["partition-id"]))
    arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in after.items()})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 10})}), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    while len(list(grid.get_node_ids())) < NODES:
        time.sleep(0.5)
    strategy = FedSparQ(aggregator="robust", fraction_evaluate=0.0, min_train_nodes=NODES, min_available_nodes=NODES)
    result = strategy.start(grid, model(), num_rounds=len(RUBBISH), timeout=60)
    folder = Path(context.run_config["folder"])
    np.savez(folder / "model.npz", **{name: array.numpy() for name, array in result.arrays.items()})
    rounds = [
        {"counted": each.counted, "events": [(event.client, event.reason) for event in each.events]}
        for each in strategy.rounds
    ]
    (folder / "report.json").write_text(json.dumps(rounds))
