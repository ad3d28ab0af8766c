"""The paper's experiments, as lists of runs. The specs lie in the package, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Literal

from fedsparq.errors import OptionError
from fedsparq.experiments.spec import RunSpec, load_compare

Experiment = Literal["mnist", "fmnist", "cifar10"]
Scale = Literal["small", "full"]

SEEDS: dict[str, int] = {"mnist": 3, "fmnist": 2, "cifar10": 1, "ablations": 1}
"""How many seeds each experiment has unless told otherwise."""


def plan(only: Experiment | None, scale: Scale, seeds: int | None) -> list[RunSpec]:
    """Every run of the reproduction, the quick ones first. At either scale MNIST and Fashion-MNIST have full length."""
    wanted: Sequence[str] = ("mnist", "ablations", "fmnist", "cifar10")
    if only:
        wanted = ("mnist", "ablations") if only == "mnist" else (only,)
    runs = []
    for name in wanted:
        file = "cifar10-small" if name == "cifar10" and scale == "small" else name
        spec = load_bundled(file)
        count = seeds or SEEDS[name]
        runs += [run.model_copy(update={"seed": seed}) for seed in range(count) for run in spec]
    unique = {run.folder_name: run for run in runs}
    return list(unique.values())


def load_bundled(name: str) -> list[RunSpec]:
    """The runs of a spec that comes with the package."""
    with as_file(files("fedsparq") / "specs" / f"{name}.toml") as path:
        return load_compare(path, {}).runs()


def locate(name: str) -> Path:
    """A spec by its path, or one of the package's by its name."""
    if Path(name).is_file():
        return Path(name)
    bundled = files("fedsparq") / "specs"
    with as_file(bundled) as folder:
        path = folder / f"{Path(name).stem}.toml"
        if path.exists():
            return path
        known = ", ".join(sorted(file.stem for file in folder.glob("*.toml")))
    raise OptionError(f"there is no spec {name!r}: give the path of a TOML file, or one of {known}")
