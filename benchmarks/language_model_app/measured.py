"""The example's server with a clock: copied into the example by benchmarks/language_model.py."""

from __future__ import annotations

import json
import resource
import time
from importlib import import_module
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save_file

app, task = import_module("app"), import_module("task")
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    config, seconds = context.run_config, list[float]()
    folder = Path(str(config["out"]))
    strategy = app.strategy_of(config)
    start = ArrayRecord(task.arrays_of(task.new_model(config)))
    begun = time.perf_counter()

    def after(number: int, arrays: ArrayRecord) -> None:
        """Wait until what Flower has counted so far was read."""
        nonlocal begun
        if number:
            seconds.append(time.perf_counter() - begun)
            (folder / f"{number}.done").touch()
            while not (folder / f"{number}.counted").exists():
                time.sleep(0.1)
        begun = time.perf_counter()

    result = strategy.start(grid, start, num_rounds=int(str(config["rounds"])), evaluate_fn=after)
    metrics = [dict(record) for _, record in sorted(result.train_metrics_clientapp.items())]
    report = {
        "seconds": seconds,
        "server_rss": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "parameters": sum(tensor.numel() for tensor in start.to_torch_state_dict().values()),
        "loss": [record["loss"] for record in metrics],
        "train_cpu": [record["train-cpu-seconds"] for record in metrics],
        "ours": [[each.up_bytes, each.down_bytes, each.kept] for each in getattr(strategy, "rounds", [])],
    }
    (folder / "report.json").write_text(json.dumps(report))
    save_file(start.to_torch_state_dict(), folder / "start.safetensors")
    save_file(result.arrays.to_torch_state_dict(), folder / "model.safetensors")
