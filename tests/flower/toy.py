"""A small federation with a known answer: each client pulls every coordinate a step towards its own target."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

SHAPES = {"conv.weight": (4, 3, 3, 3), "bn.running_mean": (4,), "fc.weight": (5, 40), "fc.bias": (5,)}


def model(seed: int = 0, counters: bool = True) -> ArrayRecord:
    rng = np.random.default_rng(seed)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    if counters:
        arrays["bn.num_batches_tracked"] = np.array(7, np.int64)
        arrays["mask"] = np.array([True, False, True])
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})


def step(arrays: ArrayRecord, client: int) -> dict[str, np.ndarray]:
    """One client's training: a tenth of the way to its target; its counters move on by one."""
    target = model(100 + client, counters=False)
    out = {}
    for name, array in arrays.items():
        value = array.numpy()
        if name in target:
            out[name] = (value + np.float32(0.1) * (target[name].numpy() - value)).astype(value.dtype)
        else:
            out[name] = value + 1 if value.dtype.kind == "i" else value
    return out


def client_app(*mods: Mod, seen: list[ArrayRecord] | None = None, deltas: dict[int, list] | None = None) -> ClientApp:
    app = ClientApp()

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"]
        number = int(context.node_config["partition-id"])
        if seen is not None:
            seen.append(arrays)
        after = step(arrays, number)
        if deltas is not None:
            change = [
                after[name] - array.numpy() for name, array in arrays.items() if name in SHAPES and "run" not in name
            ]
            deltas.setdefault(number, []).append(np.concatenate([part.ravel() for part in change]))
        content = RecordDict(
            {
                "arrays": ArrayRecord({name: Array(np.asarray(value)) for name, value in after.items()}),
                "metrics": MetricRecord({"num-examples": 10 * (number + 1), "loss": 1.0}),
            }
        )
        return Message(content, reply_to=message)

    return app


def values(arrays: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in arrays.items()}
