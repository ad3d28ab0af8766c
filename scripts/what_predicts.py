"""How much of an update the last change of the model predicts, and how much a low rank of it holds, beside what
`fedsparq-adaptive` holds for the same bits: python scripts/what_predicts.py
"""

from __future__ import annotations

from itertools import starmap

import numpy as np

import fedsparq
from fedsparq.federate.model import Model
from fedsparq.lab.settings import Training
from fedsparq.lab.tasks.supervised import Supervised
from fedsparq.layout import Vector

ROUNDS = (2, 5, 10, 20)
BITS = (0.075, 0.15, 0.3)
RANKS = (1, 2, 4)
SETTINGS = {
    "MNIST / MLP": {"dataset": "mnist", "model": "mlp", "train_limit": 20_000, "lr": 0.1},
    "Fashion-MNIST / LeNet-5": {"dataset": "fashion-mnist", "model": "lenet5", "train_limit": 10_000, "lr": 0.05},
}


def measure(name: str, lr: float, **data: object) -> None:
    """FedAvg with three clients, Dirichlet(0.5), seed 100; what is said is of the first client's update."""
    more = {"clients": 3, "partition": "dirichlet", "alpha": 0.5, "seed": 100}
    task = Supervised(**data, **more, training=Training(lr=lr, batch_size=32))  # type: ignore[arg-type]
    model, change = task.initial(), np.zeros(task.layout.size, np.float32)
    for number in range(1, max(ROUNDS) + 1):
        trained = [task.train(client, model, number) for client in range(3)]
        if number in ROUNDS:
            held = ", ".join(f"{held_by(trained[0].update, task.layout, bits):.0%} at {bits}" for bits in BITS)
            print(f"{name}, round {number}: fedsparq-adaptive holds {held} bits")
            for tensor in task.layout.parameters:
                if len(tensor.shape) > 1 and np.prod(tensor.shape) > 5000:
                    matrix = trained[0].update[tensor.span].reshape(tensor.shape[0], -1)
                    tell(tensor.name, matrix, change[tensor.span].reshape(matrix.shape))
        examples = sum(each.examples for each in trained)
        change = np.sum([each.update * (each.examples / examples) for each in trained], axis=0, dtype=np.float32)
        model = Model(model.vector + change, model.buffers)


def held_by(update: Vector, layout: fedsparq.Layout, bits: float) -> float:
    """The share of an update's energy that a message with error feedback holds."""
    method = fedsparq.method("fedsparq-adaptive", bits=bits, rounding="nearest")
    payload, _ = method.compress(update, method.init(layout), np.random.default_rng(0))
    left = update.copy()
    payload.add_to(left, -1.0)
    return 1 - float(left @ left) / float(update @ update)


def tell(name: str, matrix: Vector, change: Vector) -> None:
    cosine = float(np.vdot(matrix, change) / (np.linalg.norm(matrix) * np.linalg.norm(change)))
    energies = np.linalg.svd(matrix, compute_uv=False) ** 2
    total = energies.sum()
    ranks = [(rank, energies[:rank].sum() / total, 8 * rank * sum(matrix.shape) / matrix.size) for rank in RANKS]
    low = starmap("rank {} holds {:.0%} at {:.2f} bits with factors of 8".format, ranks)
    print(f"  {name}: the last change predicts {cosine**2:.0%} of it; {', '.join(low)}")


if __name__ == "__main__":
    for name, settings in SETTINGS.items():
        measure(name, **settings)  # type: ignore[arg-type]
