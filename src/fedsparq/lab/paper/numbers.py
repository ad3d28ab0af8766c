"""The paper's own numbers (arXiv 2511.05591, Tables I and II and the bar chart), from `numbers.toml`."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from pydantic import TypeAdapter

from fedsparq.lab.results.grouping import Setting, dataset_key

NON_IID = "dirichlet(0.5)"


@dataclass(frozen=True)
class Setup:
    """How the paper ran a data set, as far as it says."""

    model: str
    rounds: int
    clients: int


@dataclass(frozen=True)
class PaperResult:
    """One row of the paper. Bytes are the mean upload per client over the run; the chart gives its own figure."""

    accuracy: float
    loss: float
    upload_bytes: float | None = None
    chart_bytes: float | None = None
    robust1: float | None = None
    robust2: float | None = None


@dataclass(frozen=True)
class _Paper:
    arxiv: str
    setups: Mapping[str, Setup]
    caveats: Mapping[str, str]
    results: Mapping[str, Mapping[str, Mapping[str, PaperResult]]]
    """By partition, data set and method."""


_TABLES = tomllib.loads((files("fedsparq.lab.paper") / "numbers.toml").read_text("utf-8"))
_PAPER = TypeAdapter(_Paper).validate_python(_TABLES)
ARXIV, SETUPS, CAVEATS = _PAPER.arxiv, _PAPER.setups, _PAPER.caveats
METHODS = tuple(_PAPER.results["iid"]["mnist"])


def result(dataset: str, partition: str, method: str) -> PaperResult | None:
    """The paper's row for a method by our name of it, or None where the paper has no such experiment."""
    return _PAPER.results.get(partition, {}).get(dataset_key(dataset), {}).get(method)


def deviation(setting: Setting) -> str:
    """How a setting departs from the paper's own, or an empty text. The paper's numbers then stand for orientation."""
    setup = SETUPS.get(setting.dataset)
    if setup is None or not (setting.iid or setting.partition == NON_IID):
        return ""
    model = re.sub(r"[\W_]", "", setting.model.lower())  # LeNet-5, lenet_5 and lenet5 are one
    points = [
        "" if setting.rounds == setup.rounds else f"{setting.rounds} rounds here, {setup.rounds} in the paper",
        "" if setting.clients == setup.clients else f"{setting.clients} clients here, {setup.clients} in the paper",
        "" if model == setup.model else f"model {setting.model} here, {setup.model} in the paper",
        setting.note,
    ]
    return "; ".join(filter(None, points))
