"""What the paper claims, held against the runs at hand."""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import NamedTuple

from pydantic import TypeAdapter

from fedsparq.lab.paper.numbers import METHODS, NON_IID, SETUPS
from fedsparq.lab.results.grouping import Arm, Bench


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


@dataclass(frozen=True)
class _Stated:
    """A claim as `claims.toml` words it."""

    claim: str
    paper: str
    command: str
    here: str = ""
    contradicts: bool = False


class _Finding(NamedTuple):
    measured: str
    holds: bool
    figure: str


class _Pair(NamedTuple):
    """FedSparQ and a baseline in one setting."""

    bench: Bench
    ours: Arm
    theirs: Arm

    def saved(self, measure: str) -> float:
        return 1 - self.ours.spread(measure).mean / self.theirs.spread(measure).mean

    @property
    def gain(self) -> float:
        """Points of accuracy above the baseline."""
        return self.ours.accuracy.mean - self.theirs.accuracy.mean


_WORDING = tomllib.loads((files("fedsparq.lab.paper") / "claims.toml").read_text("utf-8"))
_CLAIMS = TypeAdapter(dict[str, _Stated]).validate_python(_WORDING)
_SLIGHT_GAP = 0.6  # points of accuracy; the loss on Fashion-MNIST that the paper itself calls a slight gap


def judge(benches: Sequence[Bench]) -> list[Claim]:
    """Every claim with what these runs say to it. Runs of other data sets than the paper's are not asked."""
    known = [b for b in benches if b.setting.dataset in SETUPS and (b.setting.iid or b.setting.partition == NON_IID)]
    mnist = [b for b in known if b.setting.dataset == "mnist" and b.setting.iid]
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
    return [_judged(stated, findings[key]) for key, stated in _CLAIMS.items()]


def _judged(stated: _Stated, found: _Finding | None) -> Claim:
    if found is None:
        found, verdict = _Finding("not tested here", False, ""), Verdict.NOT_TESTED
    else:
        verdict = Verdict.MEASURED if found.holds else Verdict.NOT_REACHED
    if stated.contradicts:
        verdict = Verdict.CONTRADICTS
    return Claim(stated.claim, stated.paper, stated.here + found.measured, verdict, found.figure, stated.command)


def _pairs(benches: Sequence[Bench], baseline: str) -> list[_Pair]:
    arms = ((bench, bench.arm("fedsparq"), bench.arm(baseline)) for bench in benches)
    return [_Pair(bench, ours, theirs) for bench, ours, theirs in arms if ours and theirs]


def _saving(pairs: Sequence[_Pair], asked: float) -> _Finding:
    each = _listed((pair.bench, f"{_number(100 * pair.saved('upload_bytes'))} %") for pair in pairs)
    counted = [pair.saved("upload_bytes_paper") for pair in pairs]
    ends = dict.fromkeys(f"{_number(100 * share)} %" for share in (min(counted), max(counted)))
    text = f"Fewer bytes as sent: {each}. In the paper's accounting: {' to '.join(ends)}."
    return _Finding(text, min(pair.saved("upload_bytes") for pair in pairs) >= asked, f"{pairs[0].bench.slug}-bytes")


def _accuracy(pairs: Sequence[_Pair]) -> _Finding:
    each = _listed((pair.bench, _number(pair.gain, "+.2f")) for pair in pairs)
    holds = min(pair.gain for pair in pairs) >= -_SLIGHT_GAP
    return _Finding(f"Points against FedAvg: {each}.", holds, f"{pairs[0].bench.slug}-accuracy")


def _gain(pairs: Sequence[_Pair]) -> _Finding:
    best = max(pairs, key=lambda pair: pair.gain / pair.theirs.accuracy.mean)
    gain = best.gain / best.theirs.accuracy.mean
    text = f"Largest gain over FedAvg: {_number(100 * gain, '+.1f')} %, {_short(best.bench)}."
    return _Finding(text, gain >= 0.06, f"{best.bench.slug}-accuracy")


def _robustness(benches: Sequence[Bench]) -> _Finding | None:
    found = []
    for bench in benches:
        scores = {arm.label: arm.spread("robust2").mean for arm in bench.arms if arm.label in METHODS}
        ours = scores.pop("fedsparq", None)
        if not bench.setting.iid and ours is not None and scores:
            found.append((bench, ours / max(scores.values()) - 1))
    if not found:
        return None
    each = _listed((bench, f"{_number(100 * gain, '+.0f')} %") for bench, gain in found)
    holds = min(gain for _, gain in found) >= 0.5
    return _Finding(f"Robust₂ against the best baseline: {each}.", holds, f"{found[0][0].slug}-robustness")


def _ratio(pairs: Sequence[_Pair]) -> _Finding:
    bench, ours, theirs = pairs[0]
    sent = theirs.sent.mean / ours.sent.mean
    counted = theirs.spread("upload_bytes_paper").mean / ours.spread("upload_bytes_paper").mean
    text = f"{sent:.1f} times fewer as sent, {counted:.1f} times in the paper's accounting."
    return _Finding(text, sent >= 16, f"{bench.slug}-bytes")


def _early(benches: Sequence[Bench]) -> _Finding | None:
    for bench in benches:
        ours = bench.arm("fedsparq")
        if ours is not None and bench.setting.rounds >= 3:
            third = ours.curve(lambda r: r.accuracy)[2].mean
            return _Finding(f"{third:.1f} % after round 3.", third >= 80, f"{bench.slug}-accuracy")
    return None


def _contraction(benches: Sequence[Bench]) -> _Finding | None:
    shares = [
        (share, name, r.round, bench)
        for bench in benches
        for arm in filter(None, [bench.arm("fedsparq")])
        for run in arm.runs
        for r in run.rounds
        for name, share in (r.kept_layers or {"whole model": r.kept}).items()
    ]
    if not shares:
        return None
    share, name, number, bench = min(shares, key=lambda found: found[0])
    text = f"Smallest share sent: {100 * share:.2f} % of {name} in round {number}, {_short(bench)}."
    return _Finding(text, share > 0, f"{bench.slug}-kept")


def _ablation(benches: Sequence[Bench], options: str) -> _Finding:
    """What a variant costs, where it was run; tests hold the claim itself."""
    figure = next((f"{b.slug}-variants" for b in benches if b.variants and b.arm("fedsparq")), "")
    for bench in benches:
        plain, variant = bench.arm("fedsparq"), bench.arm(f"fedsparq {options}")
        if plain is not None and variant is not None:
            text = f"{variant.accuracy.mean:.2f} % against {plain.accuracy.mean:.2f} %"
            return _Finding(f" {options} against the default on {_short(bench)}: {text}.", True, figure)
    return _Finding("", True, figure)


def _listed(found: Iterable[tuple[Bench, str]]) -> str:
    return ", ".join(f"{_short(bench)} {text}" for bench, text in found)


def _short(bench: Bench) -> str:
    return bench.setting.heading.replace(" · ", " ")


def _number(value: float, form: str = ".0f") -> str:
    return f"{value:{form}}".replace("-", "−")
