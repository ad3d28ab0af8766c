"""A server app with a strategy of its own, and the one line of FedSparQ's."""

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from advanced.strategy import CustomFedAvg
from advanced.task import Net, load_test_set, test
from fedsparq.flower import Compressed

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config, folder = context.run_config, Path(context.run_config["folder"])
    torch.manual_seed(0)
    strategy = Compressed(CustomFedAvg(fraction_evaluate=0.0, min_available_nodes=config["nodes"]))
    strategy.set_save_path(folder)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )
    (folder / "best.json").write_text(json.dumps(strategy.best_accuracy))


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(net, load_test_set())
    return MetricRecord({"accuracy": accuracy, "loss": loss})
