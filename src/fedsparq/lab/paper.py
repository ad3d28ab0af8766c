"""The paper (arXiv 2511.05591): its numbers, its claims held against runs, its experiments, how it counts bytes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import TypeAdapter

from fedsparq.lab.names import dataset_key
from fedsparq.lab.specs import RunSpec, load_bundled
from fedsparq.payload import Payload, Sparse

if TYPE_CHECKING:
    from fedsparq.lab.results import Comparison, Setting

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
class _Stated:
    """A claim as `paper.toml` words it."""

    claim: str
    paper: str
    command: str
    here: str = ""
    contradicts: bool = False


@dataclass(frozen=True)
class _Paper:
    arxiv: str
    setups: Mapping[str, Setup]
    caveats: Mapping[str, str]
    results: Mapping[str, Mapping[str, Mapping[str, PaperResult]]]
    """By partition, data set and method."""
    claims: Mapping[str, _Stated]


_TABLES = tomllib.loads((files("fedsparq.lab") / "paper.toml").read_text("utf-8"))
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


class Verdict(StrEnum):
    """What became of a claim."""

    MEASURED = "measured"
    NOT_REACHED = "not reached"
    CONTRADICTS = "contradicts itself"
    NOT_TESTED = "not tested"


class Claim(NamedTuple):
    """A row of the table of claims. `figure` names a figure of the report, or is empty."""

    claim: str
    paper: str
    measured: str
    verdict: Verdict
    figure: str
    command: str


class _Finding(NamedTuple):
    measured: str
    holds: bool
    figure: str


class _Pair(NamedTuple):
    """FedSparQ and a baseline in one setting."""

    comparison: Comparison
    theirs: str

    def saved(self, measure: str) -> float:
        return 1 - self.comparison.mean("fedsparq", measure) / self.comparison.mean(self.theirs, measure)

    @property
    def base(self) -> float:
        """Accuracy of the baseline."""
        return self.comparison.mean(self.theirs, "accuracy")

    @property
    def gain(self) -> float:
        """Points of accuracy above the baseline."""
        return self.comparison.mean("fedsparq", "accuracy") - self.base


_SLIGHT_GAP = 0.6  # points of accuracy; the loss on Fashion-MNIST that the paper itself calls a slight gap


def judge(comparisons: Sequence[Comparison]) -> list[Claim]:
    """Every claim with what these runs say to it. Runs of other data sets than the paper's are not asked."""
    known = [
        c for c in comparisons if c.setting.dataset in SETUPS and (c.setting.iid or c.setting.partition == NON_IID)
    ]
    mnist = [c for c in known if c.setting.dataset == "mnist" and c.setting.iid]
    pairs, mnist_pairs, float16_pairs = _pairs(known, "fedavg"), _pairs(mnist, "fedavg"), _pairs(known, "float16")
    findings = {
        "saving": _saving(pairs, 0.9) if pairs else None,
        "accuracy": _accuracy(pairs) if pairs else None,
        "gain": _gain(pairs) if pairs else None,
        "robustness": _robustness(known),
        "ratio": _ratio(mnist_pairs) if mnist_pairs else None,
        "early": _early(mnist),
        "float16": _saving(float16_pairs, 0.23) if float16_pairs else None,
        "contraction": _contraction(known),
        "telescoping": _ablation(known, "residual=kept-only"),
        "rounding": _ablation(known, "rounding=stochastic"),
    }
    return [_judged(stated, findings[key]) for key, stated in _PAPER.claims.items()]


def _judged(stated: _Stated, found: _Finding | None) -> Claim:
    if found is None:
        found, verdict = _Finding("not tested here", False, ""), Verdict.NOT_TESTED
    else:
        verdict = Verdict.MEASURED if found.holds else Verdict.NOT_REACHED
    if stated.contradicts:
        verdict = Verdict.CONTRADICTS
    return Claim(stated.claim, stated.paper, stated.here + found.measured, verdict, found.figure, stated.command)


def _pairs(comparisons: Sequence[Comparison], baseline: str) -> list[_Pair]:
    return [_Pair(found, baseline) for found in comparisons if {"fedsparq", baseline} <= {*found.labels}]


def _saving(pairs: Sequence[_Pair], asked: float) -> _Finding:
    each = _listed((pair.comparison, f"{_number(100 * pair.saved('upload_bytes'))} %") for pair in pairs)
    counted = [pair.saved("upload_bytes_paper") for pair in pairs]
    ends = dict.fromkeys(f"{_number(100 * share)} %" for share in (min(counted), max(counted)))
    text = f"Fewer bytes as sent: {each}. In the paper's accounting: {' to '.join(ends)}."
    return _Finding(
        text, min(pair.saved("upload_bytes") for pair in pairs) >= asked, f"{pairs[0].comparison.slug}-bytes"
    )


def _accuracy(pairs: Sequence[_Pair]) -> _Finding:
    each = _listed((pair.comparison, _number(pair.gain, "+.2f")) for pair in pairs)
    holds = min(pair.gain for pair in pairs) >= -_SLIGHT_GAP
    return _Finding(f"Points against FedAvg: {each}.", holds, f"{pairs[0].comparison.slug}-accuracy")


def _gain(pairs: Sequence[_Pair]) -> _Finding:
    best = max(pairs, key=lambda pair: pair.gain / pair.base)
    gain = best.gain / best.base
    text = f"Largest gain over FedAvg: {_number(100 * gain, '+.1f')} %, {_short(best.comparison)}."
    return _Finding(text, gain >= 0.06, f"{best.comparison.slug}-accuracy")


def _robustness(comparisons: Sequence[Comparison]) -> _Finding | None:
    found = []
    for comparison in comparisons:
        scores = {label: comparison.mean(label, "robust2") for label in comparison.main if label in METHODS}
        ours = scores.pop("fedsparq", None)
        if not comparison.setting.iid and ours is not None and scores:
            found.append((comparison, ours / max(scores.values()) - 1))
    if not found:
        return None
    each = _listed((comparison, f"{_number(100 * gain, '+.0f')} %") for comparison, gain in found)
    holds = min(gain for _, gain in found) >= 0.5
    return _Finding(f"Robust₂ against the best baseline: {each}.", holds, found[0][0].slug)


def _ratio(pairs: Sequence[_Pair]) -> _Finding:
    comparison = pairs[0].comparison
    sent, counted = (1 / (1 - pairs[0].saved(measure)) for measure in ("upload_bytes", "upload_bytes_paper"))
    text = f"{sent:.1f} times fewer as sent, {counted:.1f} times in the paper's accounting."
    return _Finding(text, sent >= 16, f"{comparison.slug}-bytes")


def _early(comparisons: Sequence[Comparison]) -> _Finding | None:
    for comparison in comparisons:
        curve = comparison.curve("fedsparq", "accuracy")
        if len(curve) >= 3:
            third = curve[2].mean
            return _Finding(f"{third:.1f} % after round 3.", third >= 80, f"{comparison.slug}-accuracy")
    return None


def _contraction(comparisons: Sequence[Comparison]) -> _Finding | None:
    shares = [
        (share, name, r.round, comparison)
        for comparison in comparisons
        for run in comparison.runs_of("fedsparq")
        for r in run.rounds
        for name, share in (r.kept_layers or {"whole model": r.kept}).items()
    ]
    if not shares:
        return None
    share, name, number, comparison = min(shares, key=lambda found: found[0])
    text = f"Smallest share sent: {100 * share:.2f} % of {name} in round {number}, {_short(comparison)}."
    return _Finding(text, share > 0, f"{comparison.slug}-kept")


def _ablation(comparisons: Sequence[Comparison], options: str) -> _Finding:
    """What a variant costs, where it was run; tests hold the claim itself."""
    figure = next((f"{c.slug}-variants" for c in comparisons if c.variants and "fedsparq" in c.labels), "")
    for comparison in comparisons:
        if {"fedsparq", f"fedsparq {options}"} <= {*comparison.labels}:
            plain, variant = (comparison.mean(label, "accuracy") for label in ("fedsparq", f"fedsparq {options}"))
            text = f"{variant:.2f} % against {plain:.2f} %"
            return _Finding(f" {options} against the default on {_short(comparison)}: {text}.", True, figure)
    return _Finding("", True, figure)


def _listed(found: Iterable[tuple[Comparison, str]]) -> str:
    return ", ".join(f"{_short(comparison)} {text}" for comparison, text in found)


def _short(comparison: Comparison) -> str:
    return comparison.heading.replace(" · ", " ")


def _number(value: float, form: str = ".0f") -> str:
    return f"{value:{form}}".replace("-", "−")


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


def message_bytes(payload: Payload) -> int:
    """The values, 4 bytes for each index that is listed, and the model's buffers as they are."""
    total = sum(values.raw_bytes() for values in payload.values)
    if isinstance(payload.selection, Sparse):
        total += 4 * payload.kept
    if payload.buffers is not None:
        total += payload.buffers.statistics.nbytes + payload.buffers.counters.nbytes
    return total
