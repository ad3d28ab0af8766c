"""GPT-2 small, whole or by an adapter, on text: Flower's FedAvg as it is, or with small messages."""

import time

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from safetensors.torch import save_file
from task import arrays_of, load_arrays, new_model, train_on_part

from fedsparq.flower import Compressed, FedSparQ, compress

app = ClientApp()


@app.train(mods=[compress()])
def train(msg: Message, context: Context) -> Message:
    config, node = context.run_config, context.node_config
    model = new_model(config)
    load_arrays(model, msg.content["arrays"].to_torch_state_dict())
    begun = time.process_time()
    part = node["partition-id"], node["num-partitions"]
    examples, loss = train_on_part(model, config, *part, order=msg.content["config"])
    metrics = {"num-examples": examples, "loss": loss, "train-cpu-seconds": time.process_time() - begun}
    content = {"arrays": ArrayRecord(arrays_of(model)), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=msg)


def strategy_of(config) -> Strategy:
    nodes = {"fraction_evaluate": 0.0, "min_train_nodes": config["nodes"], "min_available_nodes": config["nodes"]}
    down = config["downlink"] or "auto"
    if config["strategy"] == "FedSparQ":
        return FedSparQ(config["method"], downlink=down, **nodes)
    plain = FedAvg(**nodes)
    return Compressed(plain, config["method"], downlink=down) if config["strategy"] == "Compressed" else plain


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    start = ArrayRecord(arrays_of(new_model(config)))
    result = strategy_of(config).start(grid, start, num_rounds=config["rounds"])
    if config["out"]:
        save_file(result.arrays.to_torch_state_dict(), config["out"])
