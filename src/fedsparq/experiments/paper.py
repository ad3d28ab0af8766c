"""The paper's own numbers (arXiv 2511.05591, Tables I and II and the bar chart), as data."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fedsparq.experiments.grouping import Setting, dataset_key

ARXIV = "2511.05591"


@dataclass(frozen=True)
class Setup:
    """How the paper ran a data set, as far as it says."""

    model: str
    rounds: int
    clients: int = 3


@dataclass(frozen=True)
class PaperResult:
    """One row of the paper. Bytes are the mean upload per client over the run; the chart gives its own figure."""

    accuracy: float
    loss: float
    upload_bytes: float | None = None
    chart_bytes: float | None = None
    robust1: float | None = None
    robust2: float | None = None


SETUPS: Mapping[str, Setup] = MappingProxyType(
    {"mnist": Setup("mlp", 25), "fmnist": Setup("lenet5", 25), "cifar10": Setup("resnet18", 100)}
)
METHODS: Mapping[str, str] = MappingProxyType(
    {
        "fedavg": "FedAvg",
        "fedpaq": "FedPAQ",
        "fedsparq": "FedSparQ",
        "float16": "Quantization",
        "random-10": "Random 10 %",
        "top-10": "Static Top 10 %",
    }
)
NON_IID = "dirichlet(0.5)"
CAVEATS: Mapping[str, str] = MappingProxyType(
    {
        "mnist": "The paper's table has 6.24e5 bytes for FedSparQ, its bar chart 6,240,386.",
        "fmnist": "The paper's byte counts do not fit LeNet-5, whose 61,706 parameters are 6.17e6 bytes in 25 rounds: "
        "only their ratios can be compared.",
    }
)

_IID: Mapping[str, Mapping[str, tuple[float, float, float, float]]] = {
    "mnist": {
        "fedavg": (90.5, 0.33, 1.02e7, 10_177_000),
        "fedpaq": (91.0, 0.36, 3.04e5, 300_000),
        "fedsparq": (96.3, 0.17, 6.24e5, 6_240_386.66666667),
        "float16": (89.2, 0.37, 5.08e6, 5_088_500),
        "random-10": (71.8, 1.88, 3.04e5, 300_000),
        "top-10": (89.6, 0.36, 3.04e5, 300_000),
    },
    "fmnist": {
        "fedavg": (91.8, 0.31, 1.85e8, 185_013_000),
        "fedpaq": (89.5, 0.37, 7.25e7, 72_000_000),
        "fedsparq": (91.2, 0.33, 3.35e7, 34_385_013.3333333),
        "float16": (89.4, 0.37, 9.25e7, 92_506_300),
        "random-10": (89.8, 0.31, 7.20e7, 72_000_000),
        "top-10": (90.54, 0.36, 7.20e7, 72_000_000),
    },
    "cifar10": {
        "fedavg": (62.25, 1.47, 4.69e9, 4_431_747_672),
        "fedpaq": (63.03, 1.94, 3.04e8, 304_000_000),
        "fedsparq": (64.85, 1.41, 4.69e8, 472_171_610),
        "float16": (63.03, 1.90, 2.25e9, 2_260_635_004),
        "random-10": (55.23, 1.45, 3.00e8, 304_000_000),
        "top-10": (62.9, 2.05, 3.15e8, 323_342_524),
    },
}
_NON_IID: Mapping[str, Mapping[str, tuple[float, float, float, float]]] = {
    "fmnist": {
        "fedavg": (87.26, 0.39, 86.87, 223.74),
        "fedpaq": (86.23, 0.42, 85.81, 205.31),
        "fedsparq": (87.26, 0.48, 86.78, 181.79),
        "float16": (90.64, 0.29, 90.64, 312.55),
        "random-10": (89.33, 0.30, 89.03, 297.76),
        "top-10": (85.56, 0.49, 85.07, 174.61),
    },
    "cifar10": {
        "fedavg": (54.46, 3.09, 51.37, 17.62),
        "fedpaq": (31.05, 2.23, 28.82, 13.92),
        "fedsparq": (66.3, 1.51, 64.79, 43.91),
        "float16": (54.65, 2.43, 52.22, 22.48),
        "random-10": (44.4, 1.66, 42.74, 26.74),
        "top-10": (54.8, 2.31, 52.49, 23.72),
    },
}


def result(dataset: str, partition: str, method: str) -> PaperResult | None:
    """The paper's row for a method by our name of it, or None where the paper has no such experiment."""
    dataset = dataset_key(dataset)
    if partition == "iid" and method in _IID.get(dataset, {}):
        accuracy, loss, table, chart = _IID[dataset][method]
        return PaperResult(accuracy, loss, table, chart)
    if partition == NON_IID and method in _NON_IID.get(dataset, {}):
        accuracy, loss, robust1, robust2 = _NON_IID[dataset][method]
        return PaperResult(accuracy, loss, robust1=robust1, robust2=robust2)
    return None


def deviation(setting: Setting) -> str:
    """How a setting departs from the paper's own, or an empty text. The paper's numbers then stand for orientation."""
    setup = SETUPS.get(setting.dataset)
    if setup is None or not (setting.iid or setting.partition == NON_IID):
        return ""
    points = []
    if setting.rounds != setup.rounds:
        points.append(f"{setting.rounds} rounds here, {setup.rounds} in the paper")
    if setting.clients != setup.clients:
        points.append(f"{setting.clients} clients here, {setup.clients} in the paper")
    if slug_model(setting.model) != setup.model:
        points.append(f"model {setting.model} here, {setup.model} in the paper")
    if setting.note:
        points.append(setting.note)
    return "; ".join(points)


def slug_model(name: str) -> str:
    """`LeNet-5`, `lenet_5` and `lenet5` are one model."""
    return "".join(c for c in name.lower() if c.isalnum())
