"""Runs put side by side: the same data, model and partition make a bench, its methods are the arms."""

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedsparq.experiments.results import Round, Run

_DATASETS = {"mnist": "MNIST", "fmnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
_METHODS = {
    "fedavg": "FedAvg",
    "float16": "float16",
    "fedpaq": "FedPAQ",
    "random-10": "Random 10 %",
    "top-10": "Top 10 %",
    "fedsparq": "FedSparQ",
    "fedsparq-adaptive": "FedSparQ-adaptive",
    "stc": "STC",
    "qsgd": "QSGD",
    "dgc": "DGC",
    "adacomp": "AdaComp",
    "eden": "EDEN",
}
_ALIASES = {"fashion_mnist": "fmnist", "fashion-mnist": "fmnist", "cifar-10": "cifar10"}


def dataset_key(name: str) -> str:
    """One spelling for each data set the paper uses."""
    return _ALIASES.get(name.lower(), name.lower())


_PAPERS_CLIENTS = 3
_LONGEST = 40
_ABLATION = 3
"""From so many variants of FedSparQ on, they are there to explain it, and not to compete."""


def method_name(label: str) -> str:
    """A run's label as people write it: the method's usual spelling, then its options."""
    up, _, down = label.partition(" / down: ")
    method, _, options = up.partition(" ")
    name = f"{_METHODS.get(method, method)} {options}".strip()
    if not down:
        return name
    return f"{name}, both ways" if down == up else f"{name} / down: {method_name(down)}"


def slug(text: str) -> str:
    """Letters, digits and dashes: safe in a file name and in an HTML id."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "run"


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; one seed has no deviation."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        if not all(map(math.isfinite, values)):
            return cls(math.nan, None, len(values))
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True, order=True)
class Setting:
    """What must be equal before two methods may be compared."""

    dataset: str
    partition: str
    model: str
    clients: int
    rounds: int
    train_examples: int
    note: str

    @classmethod
    def of(cls, run: Run) -> "Setting":
        dataset = dataset_key(run.dataset)
        return cls(dataset, run.partition, run.model, run.clients, len(run.rounds), run.train_examples, run.note)

    @property
    def title(self) -> str:
        partition = "IID" if self.iid else self.partition[:1].upper() + self.partition[1:]
        return f"{_DATASETS.get(self.dataset, self.dataset)} · {partition}"

    @property
    def heading(self) -> str:
        """The title, with the number of clients where it is not the paper's."""
        return self.title if self.clients == _PAPERS_CLIENTS else f"{self.title} · {self.clients} clients"

    @property
    def subtitle(self) -> str:
        """The line under every figure's title; carries the note of a shortened run."""
        return f"{self.title} · {self.note or f'{self.clients} clients, {self.rounds} rounds'}"

    @property
    def iid(self) -> bool:
        return self.partition.lower() == "iid"


@dataclass(frozen=True)
class Arm:
    """All seeds of one method in one setting."""

    label: str
    runs: Sequence[Run]

    @property
    def name(self) -> str:
        return method_name(self.label)

    @property
    def short_name(self) -> str:
        """The name for a figure's margin: what is too long loses its middle, where names differ least."""
        if len(self.name) <= _LONGEST:
            return self.name
        head = _LONGEST // 2
        return f"{self.name[:head]}…{self.name[head + 1 - _LONGEST :]}"

    @property
    def method(self) -> str:
        return self.runs[0].method

    def spread(self, measure: str) -> Spread:
        return Spread.of([getattr(run, measure) for run in self.runs])

    def curve(self, value: Callable[[Round], float]) -> list[Spread]:
        """One spread for each round."""
        together = zip(*(run.rounds for run in self.runs), strict=True)
        return [Spread.of([value(r) for r in same_round]) for same_round in together]


@dataclass(frozen=True)
class Bench:
    """One setting: the methods compared, and FedSparQ's variants that explain it."""

    setting: Setting
    slug: str
    arms: Sequence[Arm]
    variants: Sequence[Arm]

    @property
    def all_arms(self) -> list[Arm]:
        return list({arm.label: arm for arm in (*self.arms, *self.variants)}.values())

    def arm(self, label: str) -> Arm | None:
        return next((arm for arm in self.all_arms if arm.label == label), None)

    @cached_property
    def goal(self) -> float | None:
        """FedAvg's final accuracy less half a point; None where FedAvg was not run."""
        whole = self.arm("fedavg")
        return whole.spread("accuracy").mean - 0.5 if whole else None

    def spread(self, arm: Arm, measure: str) -> Spread:
        """A measure of one of its arms; `reach_bytes` is what was sent when the goal was first reached, if it was."""
        if measure != "reach_bytes":
            return arm.spread(measure)
        goal = math.inf if self.goal is None else self.goal
        return Spread.of([run.bytes_to_reach(goal) for run in arm.runs])


def benches(runs: Iterable[Run]) -> list[Bench]:
    """Runs by setting, in the paper's order. Several variants of FedSparQ stand apart if it was run plain as well."""
    groups: dict[Setting, dict[str, list[Run]]] = {}
    for run in runs:
        groups.setdefault(Setting.of(run), {}).setdefault(run.label, []).append(run)
    found, slugs = [], set()
    for setting in sorted(groups, key=_reading_order):
        name = slug(f"{setting.dataset}-{setting.partition}")
        if name in slugs:
            name = slug(f"{name}-{setting.model}-{setting.clients}-clients-{setting.rounds}-rounds")
        while name in slugs:
            name += "-b"
        slugs.add(name)
        labels = groups[setting]
        arms = [Arm(label, sorted(labels[label], key=lambda r: r.seed)) for label in sorted(labels, key=_label_order)]
        variants = [arm for arm in arms if arm.runs[0].is_variant]
        if len(variants) < _ABLATION:
            variants = []
        main = [arm for arm in arms if arm not in variants or "fedsparq" not in labels]
        found.append(Bench(setting, name, main, variants))
    return found


def pareto(arms: Sequence[Arm]) -> list[Arm]:
    """Arms that no other beats on both bytes sent and accuracy, cheapest first."""
    front: list[Arm] = []
    for arm in sorted(arms, key=lambda a: (a.spread("upload_bytes").mean, -a.spread("accuracy").mean)):
        if not front or arm.spread("accuracy").mean > front[-1].spread("accuracy").mean:
            front.append(arm)
    return front


def frugal(arms: Sequence[Arm], within: float = 1.0) -> Arm:
    """The arm that sends least among those at most `within` points of accuracy below the best."""
    best = max(arm.spread("accuracy").mean for arm in arms)
    close = [arm for arm in arms if arm.spread("accuracy").mean >= best - within]
    return min(close, key=lambda arm: arm.spread("upload_bytes").mean)


def reference(arms: Sequence[Arm]) -> Arm:
    """What savings are counted against: FedAvg, or else the arm that sends most."""
    plain = [arm for arm in arms if arm.label == "fedavg"]
    return plain[0] if plain else max(arms, key=lambda arm: arm.spread("upload_bytes").mean)


def _reading_order(setting: Setting) -> tuple[int, bool, Setting]:
    known = list(_DATASETS)
    return (known.index(setting.dataset) if setting.dataset in known else len(known), not setting.iid, setting)


def _label_order(label: str) -> tuple[int, str]:
    known = ["fedavg", "fedpaq", "fedsparq", "float16", "random-10", "top-10"]
    method = label.partition(" ")[0]
    return (known.index(method) if method in known else len(known), label)
