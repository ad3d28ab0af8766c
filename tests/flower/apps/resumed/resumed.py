"""An app without chance, whose ServerApp may be killed. It writes down all deltas and all updates that count."""

import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam

from fedsparq.flower import Compressed, compress

SHAPES = {"fc1.weight": (128, 100), "fc1.bias": (128,), "fc2.weight": (10, 128), "fc2.bias": (10,)}
NODES = 2
"""No more: the sum of two does not depend on who answers first."""

client_app = ClientApp()
server_app = ServerApp()


@client_app.train(mods=[compress()])
def train(message: Message, context: Context) -> Message:
    node, number = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
    rng = np.random.default_rng([node, number])
    before = {name: array.numpy() for name, array in message.content["arrays"].items()}
    after = {name: value + 0.01 * rng.laplace(size=value.shape).astype(np.float32) for name, value in before.items()}
    save(Path(context.run_config["folder"]) / f"delta-{node}-{number}.npy", flat(after) - flat(before))
    metrics = MetricRecord({"num-examples": 10, "node": node})
    arrays = ArrayRecord({name: Array(value) for name, value in after.items()})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Where it is told to hold, it waits in the last round until the file `go` is there: so it can still be killed."""
    folder, rounds = Path(context.run_config["folder"]), int(context.run_config["rounds"])
    save_text(folder / "pid", str(os.getpid()))
    inner = FedAdam(fraction_evaluate=0.0, min_train_nodes=NODES, min_available_nodes=NODES, eta=0.01)
    aggregate, configure, sent = inner.aggregate_train, inner.configure_train, {}

    def configured(number, arrays, *rest):
        sent[number] = flat({name: array.numpy() for name, array in arrays.items()})
        return configure(number, arrays, *rest)

    def recorded(number, replies):
        for reply in replies:
            if reply.has_content():
                after = flat({name: array.numpy() for name, array in reply.content["arrays"].items()})
                save(folder / f"counted-{reply.content['metrics']['node']}-{number}.npy", after - sent[number])
        return aggregate(number, replies)

    def measured(number, arrays):
        if number == rounds and context.run_config["hold"]:
            while not (folder / "go").exists():
                time.sleep(0.1)
        save_text(folder / "done", str(number))

    inner.aggregate_train, inner.configure_train = recorded, configured
    strategy = Compressed(inner, downlink="lattice", checkpoint=folder / "checkpoint", federation=folder.name)
    while len(list(grid.get_node_ids())) < NODES:
        time.sleep(0.2)
    rng = np.random.default_rng(0)
    start = ArrayRecord({name: Array(rng.normal(size=shape).astype(np.float32)) for name, shape in SHAPES.items()})
    result = strategy.start(grid, start, num_rounds=rounds, evaluate_fn=measured)
    save(folder / "model.npy", flat({name: array.numpy() for name, array in result.arrays.items()}))


def flat(arrays: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([arrays[name].ravel() for name in SHAPES]).astype(np.float64)


def save(path: Path, array: np.ndarray) -> None:
    """Whole or not at all, though its process may be killed."""
    np.save(scratch := path.with_name(f".{os.getpid()}.npy"), array)
    scratch.rename(path)


def save_text(path: Path, text: str) -> None:
    (scratch := path.with_name(f".{os.getpid()}.txt")).write_text(text)
    scratch.rename(path)
