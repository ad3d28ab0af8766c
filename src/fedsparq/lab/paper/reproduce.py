"""The paper's experiments, as lists of runs."""

from collections.abc import Sequence
from typing import Literal

from fedsparq.lab.specs import RunSpec, load_bundled

Experiment = Literal["mnist", "fmnist", "cifar10"]
Scale = Literal["small", "full"]

SEEDS = {"mnist": 3, "fmnist": 2, "cifar10": 1, "ablations": 1}
"""How many seeds each experiment has unless told otherwise."""


def plan(only: Experiment | None, scale: Scale, seeds: int | None) -> list[RunSpec]:
    """Every run of the reproduction, the quick ones first. At either scale MNIST and Fashion-MNIST have full length."""
    wanted: Sequence[str] = ("mnist", "ablations", "fmnist", "cifar10")
    if only:
        wanted = ("mnist", "ablations") if only == "mnist" else (only,)
    runs = []
    for name in wanted:
        specs = load_bundled("cifar10-small" if name == "cifar10" and scale == "small" else name)
        runs += [run.model_copy(update={"seed": seed}) for seed in range(seeds or SEEDS[name]) for run in specs]
    return list({run.folder_name: run for run in runs}.values())
