"""Trials behind docs/ADAPTIVE.md: variants of the adaptive method, on small settings, without messages and files.

python scripts/adaptive_trials.py M3 owed=full owed=fade owed=came-back owed=response --seeds 100 101
Prints accuracy and loss, means over the last five rounds, and FedAvg's upload divided by the trial's.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fedsparq.aggregate import Mean
from fedsparq.compiled import jit
from fedsparq.compress.adaptive import EqualSlope, FixedSteps, StochasticLevels
from fedsparq.compress.budget import ByteBudget
from fedsparq.compress.feedback import sum_of
from fedsparq.federate.model import Model
from fedsparq.lab.settings import Training
from fedsparq.lab.specs.run import chosen_clients
from fedsparq.lab.tasks.supervised import Supervised
from fedsparq.layout import Layout, Vector
from fedsparq.optimize import Momentum
from fedsparq.payload import Payload, Sparse, UniformLevels
from fedsparq.payload.kernels import uniform
from fedsparq.protocols import Update
from fedsparq.wire import CONTEXT_LIMIT, encode

INDEPENDENT = FixedSteps.payload
MNIST, FASHION = {"dataset": "mnist", "model": "mlp"}, {"dataset": "fashion-mnist", "model": "lenet5"}
SETTINGS: dict[str, dict[str, Any]] = {
    "Mi": MNIST | {"clients": 3, "partition": "iid"},
    "M3": MNIST | {"clients": 3},
    "M5": MNIST | {"clients": 5, "alpha": 0.3},
    "M40": MNIST | {"clients": 40, "alpha": 0.3, "a_round": 8},
    "M100": MNIST | {"clients": 100, "a_round": 10, "train_limit": None, "rounds": 50},
    "M100i": MNIST | {"clients": 100, "a_round": 10, "train_limit": None, "rounds": 50, "partition": "iid"},
    "M10": MNIST | {"clients": 10},
    "M10h": MNIST | {"clients": 10, "a_round": 5},
    "M10e": MNIST | {"clients": 10, "a_round": 8},
    "M10i": MNIST | {"clients": 10, "a_round": 5, "partition": "iid"},
    "F10": FASHION | {"clients": 10},
    "F10h": FASHION | {"clients": 10, "a_round": 5},
    "FF": FASHION | {"clients": 3, "train_limit": None},
    "F3": FASHION | {"clients": 3},
    "G3": FASHION | {"clients": 3, "train_limit": 10_000},
}
"""20,000 images, Dirichlet(0.5) and 25 rounds where nothing else is said."""


@dataclass
class Trial:
    """Which variant; every field can be given as name=value."""

    rounding: str = "stochastic"
    """`stochastic`, `nearest`, or `none`: FedAvg."""
    bits: float = 0.15
    deferred: float = 0.3
    momentum: float = 0.3
    owed: str = "full"
    """How much of the residual is added: all, `fade`, or what did not come back by `came-back` or `response`."""
    fade: float = 0.85
    drift: float = 0.0
    """How fast a client learns how its replies differ from the model's change a round, which it then leaves out."""
    drop: float = 0.0
    """The chance that a reply is lost."""
    put_back: bool = False
    shares: str = "equal"
    """Clients' bits: all alike, or by their `weight` in the mean."""
    course: float = 1.0
    """The bits of the last round over those of the first; those between in geometric order, their mean as said."""
    draws: str = "independent"
    """Or `in-a-row`: each draw makes up for the one before, so that errors of neighbours cancel."""


@dataclass
class Memory:
    """What a client remembers."""

    compressor: dict[str, Any]
    residual: Vector
    drift: Vector
    left_out: Vector
    last: tuple[int, Vector, Vector, Vector] | None = None
    """Round, model, update and reply of the last time it was asked."""


def play(setting: str, trial: Trial, seed: int) -> tuple[float, float, float]:
    chosen = {"partition": "dirichlet", "alpha": 0.5, "train_limit": 20_000} | SETTINGS[setting]
    rounds, clients = chosen.pop("rounds", 25), chosen["clients"]
    asked = chosen.pop("a_round", clients)
    lr = 0.1 if chosen["model"] == "mlp" else 0.05
    task = Supervised(**chosen, seed=seed, training=Training(lr=lr, batch_size=32))
    layout, model, momentum = task.layout, task.initial(), Momentum(trial.momentum, restart=True)
    state, memories = momentum.init(layout), dict[int, Memory]()
    results, sent, course = [], 0.0, np.geomspace(1, trial.course, rounds)
    FixedSteps.payload = payload_in_a_row if trial.draws == "in-a-row" else INDEPENDENT  # type: ignore[method-assign]
    wanted = dict[int, float]()
    for number in range(1, rounds + 1):
        accumulator, arrived = Mean("examples").open(layout, {}), 0
        taking_part = chosen_clients(clients, asked, seed, number)
        usual = np.mean([wanted[client] for client in taking_part if client in wanted] or [1.0])
        for client in taking_part:
            trained = task.train(client, model, number)
            lost = np.random.default_rng([seed, number, client, 77]).random() < trial.drop
            if trial.rounding == "none":
                payload = Payload.full(layout, trained.update)
            else:
                bits = trial.bits * course[number - 1] / course.mean() * wanted.get(client, usual) / usual
                payload = compress(
                    trial, bits, layout, memories, client, number, model.vector, trained.update, seed, lost
                )
                sent += len(encode(payload)) / asked
                wanted[client] = 1.0 if trial.shares == "equal" else trained.examples
            if not lost:
                accumulator.add(Update(client, payload, trained.examples, trained.examples))
                arrived += 1
        if arrived:
            mean = accumulator.close().mean
            assert mean is not None
            vector, state = momentum.step(model.vector, mean, state)
            model = Model(vector, model.buffers)
        if number > rounds - 5:
            results.append(task.evaluate(model))
    ratio = 4 * layout.size * rounds / sent if sent else 1.0
    return float(np.mean([r["accuracy"] for r in results])), float(np.mean([r["loss"] for r in results])), ratio


def compress(
    trial: Trial,
    bits: float,
    layout: Layout,
    memories: dict[int, Memory],
    client: int,
    number: int,
    model: Vector,
    update: Vector,
    seed: int,
    lost: bool,
) -> Payload:
    budget = ByteBudget(bits, 0, 0.5, encode, CONTEXT_LIMIT)
    stochastic = trial.rounding == "stochastic"
    compressor = StochasticLevels(budget, trial.deferred) if stochastic else EqualSlope(budget)
    zero = np.zeros(layout.size, np.float32)
    own = memories.setdefault(client, Memory(compressor.init(layout), zero, zero, zero))
    own.compressor = {**own.compressor, "bytes": np.array([budget.bytes(layout)])}
    trained = update
    if trial.drift:
        if own.last is not None:
            before, old, _, reply = own.last
            beyond = own.left_out + reply - (model - old) / np.float32(number - before)
            own.drift = np.float32(1 - trial.drift) * own.drift + np.float32(trial.drift) * beyond
        own.left_out = by_layer(layout, own.drift, lambda span: share(update[span], own.drift[span]))
        update = update - own.left_out
    residual = own.residual
    if trial.owed == "fade":
        residual = np.float32(trial.fade) * residual
    elif trial.owed == "came-back":
        residual = by_layer(layout, residual, lambda span: 1 - share(update[span], own.residual[span]))
    elif trial.owed == "response" and own.last is not None:
        change, reaction = model - own.last[1], own.last[2] - trained
        residual = by_layer(layout, residual, lambda span: 1 - share(reaction[span], change[span]))
    c, _ = sum_of(update, residual, layout)
    rng = np.random.default_rng([seed, number, client, 1])
    payload, own.compressor, rest = compressor.compress(c, layout, own.compressor, rng)
    if rest is None:
        rest = c.copy()
        payload.add_to(rest, -1.0)
    own.residual = rest
    own.last = number, model, trained, payload.dense()
    if lost and (trial.put_back or not stochastic):
        payload.add_to(own.residual, 1.0)
    return payload


def payload_in_a_row(self: FixedSteps, c: Vector, layout: Layout, seed: np.uint64) -> Payload:
    """Return c rounded by `in_a_row`, in the place of `FixedSteps.payload`."""
    indices = self.drawn(c, layout)
    levels = np.empty(indices.size, np.int16)
    count = in_a_row(c, layout.bounds, self.steps, seed, indices, levels)
    parts = zip(self.steps, layout.split(indices[:count]), strict=True)
    return Payload(layout, Sparse(indices[:count]), tuple(UniformLevels(step, levels[part]) for step, part in parts))


@jit
def in_a_row(c: Any, bounds: Any, steps: Any, seed: Any, indices: Any, levels: Any) -> int:
    """Round by systematic sampling: the sum of what was drawn so far is the sum of c to a step, unbiased."""
    n = layer = 0
    total = uniform(seed, np.uint64(0))
    for k in range(indices.size):
        index = indices[k]
        while index >= bounds[layer + 1]:
            layer += 1
            total = uniform(seed, np.uint64(bounds[layer]))
        before, total = np.floor(total), total + np.float64(c[index]) / np.float64(steps[layer])
        level = int(np.floor(total) - before)
        if level != 0:
            indices[n], levels[n] = index, level
            n += 1
    return n


def share(update: Vector, other: Vector) -> float:
    """How much of another vector an update holds: their regression coefficient, from 0 to 1."""
    square = float(np.square(other, dtype=np.float64).sum())
    return min(max(float(update.astype(np.float64) @ other) / square, 0.0), 1.0) if square else 0.0


def by_layer(layout: Layout, vector: Vector, factor: Any) -> Vector:
    return np.concatenate([np.float32(factor(t.span)) * vector[t.span] for t in layout.parameters])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("trials", nargs="*", default=[""], help="name=value,name=value")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100])
    given = parser.parse_args()
    kinds = {each.name: type(each.default) for each in fields(Trial)}
    for text in given.trials:
        options = dict(pair.split("=") for pair in text.split(",") if pair)
        trial = Trial(**{name: kinds[name](value) for name, value in options.items()})
        runs = [play(given.setting, trial, seed) for seed in given.seeds]
        accuracy, loss, ratio = np.mean(runs, 0)
        each = " ".join(f"{run[0]:.2f}" for run in runs)
        print(f"{given.setting} {text or 'as it is'}: {accuracy:.2f} {loss:.4f}, {ratio:.0f}x ({each})", flush=True)


if __name__ == "__main__":
    main()
