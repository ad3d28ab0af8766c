"""A Flower app with the two lines, which writes down every delta that is made and every update that counts."""

import json
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsparq import Model
from fedsparq.flower import Compressed, compress
from fedsparq.lab.engines.engine import build_task
from fedsparq.lab.specs import RunSpec
from fedsparq.layout import Layout

SPEC = RunSpec(clients=3, partition="dirichlet", train_limit=600)
STALLED = (2, 2)
"""The round and the node that is slow to send: its state is saved, and its reply has not left."""


def to_model(arrays: ArrayRecord, layout: Layout) -> Model:
    return Model(*layout.flatten({name: array.numpy() for name, array in arrays.items()}))


def to_arrays(model: Model, layout: Layout) -> ArrayRecord:
    named = layout.unflatten(model.vector, model.buffers)
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in named.items()})


def stall(message: Message, context: Context, call_next) -> Message:
    number = int(message.content["config"]["server-round"])
    reply = call_next(message, context)
    if (number, context.node_config["partition-id"]) == STALLED:
        (Path(context.run_config["folder"]) / "stalled").touch()
        time.sleep(120)
    return reply


client_app = ClientApp()


@client_app.train(mods=[stall, compress("fedsparq")])
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    task = build_task(SPEC)
    number, node = int(message.content["config"]["server-round"]), int(context.node_config["partition-id"])
    before = to_model(message.content["arrays"], task.layout)
    method = SPEC.chosen_method()
    trained = task.train(node, before, number, method.gradient_hook(method.init(task.layout)))
    np.save(Path(context.run_config["folder"]) / f"delta-{node}-{number}.npy", trained.update)
    content = {
        "arrays": to_arrays(Model(*task.network.state()), task.layout),
        "metrics": MetricRecord({"num-examples": trained.examples, "node": node}),
    }
    return Message(RecordDict(content), reply_to=message)


class Recording(FedAvg):
    """Writes down each update it is given; from the fourth round on it waits until all nodes are back."""

    def __init__(self, folder: Path) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
        self.folder = folder

    def configure_train(self, server_round, arrays, config, grid):
        self.layout = build_task(SPEC).layout
        self.before = to_model(arrays, self.layout).vector.astype(np.float64)
        if server_round in (1, 2) or server_round >= 4:
            self.min_available_nodes = 3
            while len(list(grid.get_node_ids())) < 3:
                time.sleep(1)
        else:
            self.min_available_nodes = 2
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        for reply in replies:
            if reply.has_content():
                node = reply.content["metrics"]["node"]
                update = to_model(reply.content["arrays"], self.layout).vector - self.before
                np.save(self.folder / f"counted-{node}-{server_round}.npy", update)
        return super().aggregate_train(server_round, replies)


server_app = ServerApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    folder, task = Path(context.run_config["folder"]), build_task(SPEC)
    strategy = Compressed(Recording(folder))
    accuracies = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        accuracies.append(task.evaluate(to_model(arrays, task.layout))["accuracy"])
        return MetricRecord({"accuracy": accuracies[-1]})

    start = to_arrays(task.initial(), task.layout)
    rounds = int(context.run_config["rounds"])
    strategy.start(grid, start, num_rounds=rounds, timeout=300, evaluate_fn=evaluate)
    report = {
        "accuracies": accuracies,
        "rounds": [
            {"counted": len(r.counted), "up": r.up_bytes, "down": r.down_bytes, "events": [e.reason for e in r.events]}
            for r in strategy.rounds
        ],
    }
    (folder / "report.json").write_text(json.dumps(report))
