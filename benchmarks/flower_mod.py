"""What the mod itself costs a node in a round of ResNet-18's size (11,181,642 parameters), without any training.

In one process, as simulations run: the least of seven rounds. In a process of its own for each message, as a deployment
runs them: the least of five. Seconds by the clock and of CPU time, in all and by part; the state is written to disk and
synced in each round.

    python benchmarks/flower_mod.py [--method fedsparq] [--downlink METHOD]
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

PARTS = ("state read", "model", "model written", "difference", "compress", "encode", "state written")
Seconds = tuple[float, float]
"""By the clock, and of CPU time."""


def measure(method: str = "fedsparq", downlink: str = "") -> dict[str, dict[str, Seconds]]:
    """For one process and for new ones: the least seconds of the mod and of each of its parts."""
    with tempfile.TemporaryDirectory() as folder:
        one = _worker(Path(folder), 8, method, downlink)[1:]
    with tempfile.TemporaryDirectory() as folder:
        fresh = [_worker(Path(folder), done, method, downlink)[-1] for done in range(1, 7)][1:]
    return {"one process": _least(one), "a new process": _least(fresh)}


def _least(rounds: list[dict[str, Seconds]]) -> dict[str, Seconds]:
    return {part: (min(r[part][0] for r in rounds), min(r[part][1] for r in rounds)) for part in rounds[0]}


def _worker(folder: Path, rounds: int, method: str, downlink: str) -> list[dict[str, Seconds]]:
    command = [sys.executable, __file__, "--worker", str(folder), str(rounds), method, downlink]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    measured: list[dict[str, Seconds]] = json.loads(said.splitlines()[-1])
    return measured


def work(folder: Path, rounds: int, method: str, downlink: str) -> list[dict[str, Seconds]]:
    """Go on with a federation of one node up to so many rounds; what each round of this process took."""
    import numpy as np
    from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    from fedsparq import DiskStore
    from fedsparq.federate import client
    from fedsparq.federate.exact import NamedModel
    from fedsparq.flower import Compressed, compress
    from fedsparq.lab.tasks import models
    from fedsparq.method import Method

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    grid = import_module("inprocess_grid").InProcessGrid

    logging.getLogger("flwr").setLevel(logging.ERROR)
    measured: list[dict[str, Seconds]] = []
    in_mod = False
    start = ArrayRecord(models.build("resnet18", models.Signature((3, 32, 32), 10), seed=0).state_dict())
    rng = np.random.default_rng(0)
    noise = {
        name: np.float32(1e-3 / (1 + index % 7)) * rng.laplace(size=array.shape).astype(np.float32)
        for index, (name, array) in enumerate(start.items())
        if array.dtype == "float32"
    }

    def parted(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **more: Any) -> Any:
            begun = time.perf_counter(), time.process_time()
            result = function(*args, **more)
            if in_mod:  # the server, which is in this process too, compresses as well
                _add(measured[-1], part, begun)
            return result

        return timed

    for part, (owner, name) in zip(
        PARTS,
        (
            (DiskStore, "load"),
            (client, "_built"),
            (DiskStore, "save_held"),
            (NamedModel, "difference"),
            (Method, "compress"),
            (client, "encode"),
            (DiskStore, "save"),
        ),
        strict=True,
    ):
        setattr(owner, name, parted(part, getattr(owner, name)))

    def watch(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        nonlocal in_mod
        measured.append(dict.fromkeys(("all", *PARTS), (0.0, 0.0)))
        begun, in_mod = (time.perf_counter(), time.process_time()), True
        reply = call_next(message, context)
        _add(measured[-1], "all", begun)
        in_mod = False
        return reply

    app = ClientApp()

    @app.train(mods=[watch, compress(state=folder / "nodes")])
    def train(message: Message, context: Context) -> Message:
        begun = time.perf_counter(), time.process_time()
        after = ArrayRecord(
            {
                name: Array(array.numpy() + noise[name]) if name in noise else array
                for name, array in message.content.array_records["arrays"].items()
            }
        )
        metrics = MetricRecord({"num-examples": 1})
        reply = Message(RecordDict({"arrays": after, "metrics": metrics}), reply_to=message)
        _add(measured[-1], "all", begun, sign=-1)
        return reply

    alone = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = Compressed(
        alone, method, downlink=downlink or None, checkpoint=folder / "server", federation="benchmark"
    )
    strategy.start(grid([app]), start, num_rounds=rounds)
    return measured


def _add(parts: dict[str, Seconds], part: str, begun: Seconds, sign: int = 1) -> None:
    clock, cpu = time.perf_counter() - begun[0], time.process_time() - begun[1]
    parts[part] = parts[part][0] + sign * clock, parts[part][1] + sign * cpu


def table(measured: dict[str, dict[str, Seconds]]) -> str:
    """The measurement as Markdown: seconds by the clock, and of CPU time in brackets."""
    lines = ["| | all | " + " | ".join(PARTS) + " | the rest |", "|---|" + "---|" * (len(PARTS) + 2)]
    for name, parts in measured.items():
        rest = tuple(parts["all"][way] - sum(parts[part][way] for part in PARTS) for way in (0, 1))
        shown = [f"{clock:.3f} ({cpu:.3f})" for clock, cpu in (*(parts[p] for p in ("all", *PARTS)), rest)]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(work(Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--method", default="fedsparq")
        parser.add_argument("--downlink", default="")
        options = parser.parse_args()
        found = measure(options.method, options.downlink)
        print(json.dumps(found))
        print(table(found))
