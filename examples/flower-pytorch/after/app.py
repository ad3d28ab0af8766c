"""The smallest Flower app with PyTorch: each node has its share of a small MNIST."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from task import accuracy, new_model, train_on_part

from fedsparq.flower import FedSparQ, compress

app = ClientApp(mods=[compress("fedsparq")])


@app.train()
def train(msg: Message, context: Context) -> Message:
    model = new_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    part, parts = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    examples = train_on_part(model, part, parts)
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": examples}),
    }
    return Message(RecordDict(content), reply_to=msg)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    strategy = FedSparQ(FedAvg(fraction_evaluate=0.0), downlink="fedsparq")
    strategy.start(
        grid,
        ArrayRecord(new_model().state_dict()),
        num_rounds=int(context.run_config["rounds"]),
        evaluate_fn=lambda number, arrays: MetricRecord({"accuracy": accuracy(arrays.to_torch_state_dict())}),
    )
