"""A client app that keeps its classification head in the node's state, and the one line of FedSparQ's."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from advanced.task import Net, load_data
from advanced.task import train as train_fn
from fedsparq.flower import compress

app = ClientApp()


@app.train(mods=[compress()])
def train(msg: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    if "head" in context.state:
        net.fc2.load_state_dict(context.state["head"].to_torch_state_dict())
    part = int(context.node_config["partition-id"])
    data, _ = load_data(part, context.node_config["num-partitions"])
    config = context.run_config
    loss = train_fn(net, data, config["local-epochs"], msg.content["config"]["lr"], config["batch-size"])
    context.state["head"] = ArrayRecord(net.fc2.state_dict())
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data[1])})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg)
