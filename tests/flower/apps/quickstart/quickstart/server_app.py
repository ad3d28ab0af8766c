"""A server app with FedAvg, and the one line of FedSparQ's; it saves the model and what was measured."""

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsparq.flower import Compressed
from quickstart.task import Net, load_test_set, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config, folder = context.run_config, Path(context.run_config["folder"])
    torch.manual_seed(0)
    strategy = Compressed(FedAvg(fraction_evaluate=config["fraction-evaluate"]))
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), folder / "final_model.pt")
    measured = {
        "train": {number: dict(record) for number, record in result.train_metrics_clientapp.items()},
        "nodes": {number: dict(record) for number, record in result.evaluate_metrics_clientapp.items()},
        "server": {number: dict(record) for number, record in result.evaluate_metrics_serverapp.items()},
    }
    (folder / "result.json").write_text(json.dumps(measured))


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(net, load_test_set())
    return MetricRecord({"accuracy": accuracy, "loss": loss})
