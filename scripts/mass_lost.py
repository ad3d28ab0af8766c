"""Measures what docs/NOTHING_IS_LOST.md shows: the spec `dropout` once more, with books kept of every update.

    python scripts/mass_lost.py [--seeds 0 1 2] [--out docs/figures]

Each run is the one that `fedsparq compare dropout` makes, in this process. For every client it adds up all updates that
training gave, what was counted of all replies, and at each round's end what is in flight and in the residual. What is
missing is lost. Prints the tables and draws the figures.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedsparq.federate.client import Client, Trained
from fedsparq.federate.downlink import Downlink
from fedsparq.federate.messages import NOTHING_COUNTED, Acknowledgement, Reply, reply_digest
from fedsparq.federate.model import Model
from fedsparq.federate.rounds import Delivery, Traffic, play_round
from fedsparq.federate.server import Server
from fedsparq.federate.store import MemoryStore
from fedsparq.lab.engines.engine import Asked, Engine, build_task
from fedsparq.lab.engines.faults import FaultyEngine
from fedsparq.lab.report.palette import LINES, looks
from fedsparq.lab.specs import RunSpec, load_compare, locate
from fedsparq.lab.tasks import Task
from fedsparq.methods import resolver
from fedsparq.protocols import GradientHook
from fedsparq.wire import decode


@dataclass
class Books(Engine):
    """An engine that trains clients in this process and adds up what training gave."""

    spec: RunSpec
    task: Task
    store: MemoryStore = field(default_factory=MemoryStore)
    updates: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    counted: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    def exchange(self, asked: Asked) -> Iterator[Delivery]:
        for client in sorted(asked.broadcasts):

            def train(model: Model, hook: GradientHook | None, number: int, client: int = client) -> Trained:
                trained = self.task.train(client, model, number, hook)
                self.updates[client] = self.updates.get(client, 0) + trained.update.astype(np.float64)
                return trained

            resolve = resolver(self.spec.method)
            worker = Client(client, self.task.layout, train, self.store, resolve, self.spec.seed)
            yield Delivery(client, worker.answer(asked.broadcasts[client]))

    def count(self, acknowledged: Mapping[int, Acknowledgement], number: int) -> None:
        """Add up what the round counted of each reply."""
        for client, last in acknowledged.items():
            if last.round == number:
                self.counted[client] = self.counted.get(client, 0) + last.share * self._dense(client)

    def lost(self, acknowledged: Mapping[int, Acknowledgement]) -> float:
        """The share of all updates that is neither counted nor with its client any more, in L1 norm."""
        missing = whole = 0.0
        for client, updates in self.updates.items():
            state = self.store.states[client]
            left = updates - self.counted.get(client, 0) - state.compression.residual
            last = acknowledged.get(client, NOTHING_COUNTED)
            share = last.share if last.reply == (state.round, reply_digest(state.in_flight)) else 0.0
            if self.spec.acknowledge:
                left = left - (1 - share) * self._dense(client)
            missing += float(np.abs(left).sum())
            whole += float(np.abs(updates).sum())
        return missing / whole

    def _dense(self, client: int) -> NDArray[np.float64]:
        reply = Reply.decode(self.store.states[client].in_flight)
        return decode(reply.blob, self.task.layout).dense().astype(np.float64)


def measure(spec: RunSpec) -> dict[str, list[float]]:
    """Accuracy and share of mass lost after each round."""
    task = build_task(spec)
    validation, down = (
        spec.server.validation(spec.acknowledge),
        Downlink(task.layout, spec.lattice),
    )
    server = Server(task.layout, spec.chosen_method(), task.initial(), validation=validation, downlink=down)
    books = Books(spec, task)
    found: dict[str, list[float]] = {"accuracy": [], "lost": []}
    with tempfile.TemporaryDirectory() as folder:
        engine = FaultyEngine(books, spec.faults, task.layout, spec.clients, spec.seed, Path(folder))

        def ask(clients: Iterable[int]) -> Iterator[Delivery]:
            number = server.state.round + 1
            return engine.exchange(Asked(number, {client: server.broadcast(client) for client in clients}, number - 1))

        for number in range(1, spec.rounds + 1):
            play_round(server, spec.chosen_clients(number), ask, Traffic())
            books.count(server.state.counted, number)
            found["accuracy"].append(task.evaluate(server.state.model)["accuracy"])
            found["lost"].append(100 * books.lost(server.state.counted))
    return found


def draw(runs: Mapping[str, list[dict[str, list[float]]]], folder: Path) -> None:
    names = {label: label.replace("fedsparq", "FedSparQ") for label in runs}
    titles = {
        "accuracy": (
            "Accuracy with 30 % of replies lost",
            "MNIST, Dirichlet(0.5), 10 clients: test accuracy in %",
            (90, 99),
        ),
        "lost": (
            "Where the updates went",
            "Share of all update mass that is lost for good, in % (L1 norm)",
            (-2, None),
        ),
    }
    for kind, (title, subtitle, limits) in titles.items():
        with matplotlib.rc_context({"svg.hashsalt": kind, "svg.fonttype": "none", "font.size": 9}):
            figure = Figure(figsize=(5, 3.3), layout="constrained")
            figure.suptitle(title, fontweight="bold")
            axes = figure.add_subplot()
            axes.set_title(subtitle, fontsize=8)
            for label, look in looks(runs).items():
                curves = np.array([run[kind] for run in runs[label]])
                rounds = np.arange(1, curves.shape[1] + 1)
                axes.plot(
                    rounds,
                    curves.mean(axis=0),
                    linestyle=LINES[look.dash],
                    color=look.shade.light,
                    label=names[label],
                    linewidth=1.8,
                )
                axes.fill_between(
                    rounds, curves.min(axis=0), curves.max(axis=0), color=look.shade.light, alpha=0.15, lw=0
                )
            axes.set_ylim(*limits)
            axes.set_xlabel("round", fontsize=8)
            axes.grid(axis="y")
            axes.legend(frameon=False, fontsize=8)
            for ending, metadata in (("svg", {"Date": None}), ("png", {})):
                figure.savefig(folder / f"nothing-is-lost-{kind}.{ending}", dpi=220, metadata=metadata)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "docs" / "figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs: dict[str, list[dict[str, list[float]]]] = {}
    for seed in arguments.seeds:
        for spec in load_compare(locate("dropout"), {"seed": seed}).runs():
            found = measure(spec)
            runs.setdefault(spec.label, []).append(found)
            print(
                f"seed {seed}: {spec.label}: {found['accuracy'][-1]:.2f} %, lost {found['lost'][-1]:.2g} %", flush=True
            )
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "nothing-is-lost.json").write_text(json.dumps({"seeds": arguments.seeds, "runs": runs}))
    draw(runs, arguments.out)
    print("\n| run | accuracy, each seed | mean | mass lost, each seed |\n|---|---|---|---|")
    for label, found in runs.items():
        final = [run["accuracy"][-1] for run in found]
        lost = ", ".join(f"{run['lost'][-1]:.2g} %" for run in found)
        print(f"| {label} | {', '.join(f'{a:.2f}' for a in final)} | {np.mean(final):.2f} | {lost} |")


if __name__ == "__main__":
    main()
