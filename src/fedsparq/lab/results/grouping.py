"""Runs put side by side: the same data, model and partition make a bench, its methods are the arms."""

import math
import re
import statistics
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import accumulate

from fedsparq.lab.results.records import Round, Run

_NAMES = tomllib.loads((files("fedsparq.lab.results") / "names.toml").read_text("utf-8"))
_DATASETS: Mapping[str, str] = _NAMES["datasets"]
_ALIASES: Mapping[str, str] = _NAMES["aliases"]
_METHODS: Mapping[str, str] = _NAMES["methods"]
_IN_PAPERS_ORDER = list(_METHODS)[:6]
_PAPERS_CLIENTS = 3
_LONGEST = 40
_ABLATION = 3
"""From so many variants of FedSparQ on, they are there to explain it, and not to compete."""


def dataset_key(name: str) -> str:
    """One spelling for each data set the paper uses."""
    return _ALIASES.get(name.lower(), name.lower())


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

    def apart(self, other: "Spread") -> bool:
        """Whether the seeds keep them apart: the two ranges mean ± deviation do not meet."""
        return abs(self.mean - other.mean) > (self.std or 0.0) + (other.std or 0.0)


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
    shows_model: bool = field(default=False, compare=False)
    """Whether another setting differs from this one in the model alone."""

    @classmethod
    def of(cls, run: Run) -> "Setting":
        dataset = dataset_key(run.dataset)
        return cls(dataset, run.partition, run.model, run.clients, run.planned, run.train_examples, run.note)

    @property
    def title(self) -> str:
        partition = "IID" if self.iid else self.partition[:1].upper() + self.partition[1:]
        model = f" · {self.model}" if self.shows_model else ""
        return f"{_DATASETS.get(self.dataset, self.dataset)} · {partition}{model}"

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
    def options(self) -> str:
        """What is unusual about it, as a variant of its method is named."""
        return self.label.partition(" ")[2] or "default"

    def spread(self, measure: str) -> Spread:
        return Spread.of([getattr(run, measure) for run in self.runs])

    @property
    def accuracy(self) -> Spread:
        return self.spread("accuracy")

    @property
    def sent(self) -> Spread:
        """Bytes that a client uploads over the run."""
        return self.spread("upload_bytes")

    def curve(self, value: Callable[[Round], float]) -> list[Spread]:
        """One spread for each round, over the seeds that got so far."""
        longest = max(len(run.rounds) for run in self.runs)
        return [Spread.of([value(run.rounds[t]) for run in self.runs if t < len(run.rounds)]) for t in range(longest)]

    def sent_so_far(self) -> list[float]:
        """Bytes that a client has uploaded after each round, mean over seeds."""
        sent = [list(accumulate(r.upload_bytes for r in run.rounds)) for run in self.runs]
        return [statistics.fmean(run[t] for run in sent if t < len(run)) for t in range(max(map(len, sent)))]

    @property
    def progress(self) -> str:
        """How far its runs are; empty when all are finished."""
        done, planned = sum(len(run.rounds) for run in self.runs), sum(run.planned for run in self.runs)
        return "" if done == planned else f"{done} of {planned} rounds"


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

    @property
    def has_goal(self) -> bool:
        return self.arm("fedavg") is not None

    def goal(self, seed: int) -> float:
        """FedAvg's final accuracy less half a point: with the same seed, or the mean where that seed was not run."""
        whole = self.arm("fedavg")
        if whole is None:
            return math.inf
        own = [run.accuracy for run in whole.runs if run.seed == seed]
        return (own[0] if own else whole.accuracy.mean) - 0.5

    def reached(self, arm: Arm) -> list[float]:
        """What a client had sent when the goal was first reached, for each seed that did reach it."""
        sent = (run.bytes_to_reach(self.goal(run.seed)) for run in arm.runs)
        return [amount for amount in sent if math.isfinite(amount)]


def benches(runs: Iterable[Run]) -> list[Bench]:
    """Runs by setting, in the paper's order. Several variants of FedSparQ stand apart if it was run plain as well."""
    groups: dict[Setting, dict[str, list[Run]]] = {}
    for run in runs:
        groups.setdefault(Setting.of(run), {}).setdefault(run.label, []).append(run)
    found, slugs = [], set()
    alike = Counter(replace(setting, model="") for setting in groups)
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
        shown = replace(setting, shows_model=alike[replace(setting, model="")] > 1)
        found.append(Bench(shown, name, main, variants))
    return found


def pareto(arms: Sequence[Arm]) -> list[Arm]:
    """Arms that no other beats on both bytes sent and accuracy, cheapest first."""
    front: list[Arm] = []
    for arm in sorted(arms, key=lambda arm: (arm.sent.mean, -arm.accuracy.mean)):
        if not front or arm.accuracy.mean > front[-1].accuracy.mean:
            front.append(arm)
    return front


def reference(arms: Sequence[Arm]) -> Arm:
    """What savings are counted against: FedAvg, or else the arm that sends most."""
    plain = [arm for arm in arms if arm.label == "fedavg"]
    return plain[0] if plain else max(arms, key=lambda arm: arm.sent.mean)


def _reading_order(setting: Setting) -> tuple[int, bool, Setting]:
    return (_rank(setting.dataset, list(_DATASETS)), not setting.iid, setting)


def _label_order(label: str) -> tuple[int, str]:
    return (_rank(label.partition(" ")[0], _IN_PAPERS_ORDER), label)


def _rank(name: str, known: Sequence[str]) -> int:
    return known.index(name) if name in known else len(known)
