"""A federation that can be killed at any step and started again: run as a program, it is killed for real."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
)

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from toy import client_app, model  # noqa: E402

from fedsparq.flower import Compressed, FedSparQ, compress  # noqa: E402
from inprocess_grid import InProcessGrid  # noqa: E402

ROUNDS = 6


class Killed(BaseException):
    """The server app is gone."""


class Fragile(InProcessGrid):
    """A grid whose every message is a moment at which the server may die: before it, or after."""

    def __init__(self, apps: list[ClientApp], die_at: int, die) -> None:
        super().__init__(apps)
        self.moment, self.die_at, self.die = 0, die_at, die

    def _tick(self) -> None:
        self.moment += 1
        if self.moment == self.die_at:
            self.die()

    def push_messages(self, messages):
        ids = []
        for message in messages:
            self._tick()
            ids += super().push_messages([message])
            self._tick()
        return ids

    def pull_messages(self, message_ids):
        replies = []
        for message_id in message_ids:
            self._tick()
            replies += super().pull_messages([message_id])
        self._tick()
        return replies

    def get_node_ids(self):
        self._tick()
        return super().get_node_ids()


def sampled(**more):
    return {"fraction_train": 0.67, "fraction_evaluate": 0.5, "min_train_nodes": 2, "min_evaluate_nodes": 1, **more}


INNER = {
    "fedavg": lambda: FedAvg(**sampled()),
    "fedavgm": lambda: FedAvgM(**sampled(), server_momentum=0.5),
    "fedadam": lambda: FedAdam(**sampled()),
    "fedyogi": lambda: FedYogi(**sampled()),
    "fedadagrad": lambda: FedAdagrad(**sampled()),
    # Without noise, which is never drawn twice, and without evaluation, which a private run does not take up again
    "dp": lambda: DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(**sampled(fraction_evaluate=0.0)), 0.0, 2, 1.0),
    "dp-client": lambda: DifferentialPrivacyClientSideAdaptiveClipping(
        FedAvgM(**sampled(fraction_evaluate=0.0)), 0.0, 2, 1.0
    ),
}


ROBUST = ("robust", "centered-clipping")
"""Aggregators that are named. They need five replies to compare any, so there are six nodes."""


def strategy(kind: str, folder: Path):
    options = {"checkpoint": folder / "server", "federation": "hospitals"}
    if kind in ROBUST:
        return FedSparQ("fedsparq", downlink="lattice", aggregator=kind, **sampled(fraction_train=0.9), **options)
    if kind == "own":
        return FedSparQ("fedsparq", downlink="lattice", server_momentum=0.5, **sampled(), **options)
    return Compressed(INNER[kind](), "fedsparq", downlink="lattice", **options)


def apps(folder: Path, kind: str, deltas: dict | None = None) -> list[ClientApp]:
    from flwr.clientapp.mod import adaptiveclipping_mod

    mods = [adaptiveclipping_mod] if kind == "dp-client" else []
    app = client_app(compress(state=folder / "nodes"), *mods, deltas=deltas)

    @app.evaluate(mods=[compress(state=folder / "nodes")])
    def evaluate(message: Message, context: Context) -> Message:
        total = float(sum(np.abs(array.numpy()).sum() for array in message.content["arrays"].values()))
        return Message(RecordDict({"m": MetricRecord({"num-examples": 1, "total": total})}), reply_to=message)

    return [app] * (6 if kind in ROBUST else 3)


def play(kind: str, folder: Path, die_at: int = 0, die=None, deltas: dict | None = None) -> tuple[ArrayRecord, Fragile]:
    """A server app from its start to its end, or to its death."""
    random.seed(3)
    np.random.seed(3)
    grid = Fragile(apps(folder, kind, deltas), die_at, die)
    counters = kind not in ("dp-client",)
    made = strategy(kind, folder)
    result = made.start(grid, model(counters=counters), num_rounds=ROUNDS, timeout=0.5, train_config=ConfigRecord())
    return result.arrays, grid


if __name__ == "__main__":
    kind, folder, moment, out = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    arrays, _ = play(kind, folder, moment, lambda: os.kill(os.getpid(), signal.SIGKILL))
    np.savez(out, **{name: array.numpy() for name, array in arrays.items()})
