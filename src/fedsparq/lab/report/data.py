"""What the figures of a page are drawn from: one JSON object for each comparison."""

import math
import re
from collections.abc import Sequence
from typing import Any

from fedsparq.lab.names import method_name
from fedsparq.lab.report.palette import Looks
from fedsparq.lab.results import Comparison, Spread

_MANY, _FEATURED, _DIGITS = 12, 5, 7
_NUMBER_OPTION = re.compile(r" \w+=[-+.e\d]+(?= |$)")


def comparison_data(comparison: Comparison, looks: Looks) -> dict[str, Any]:
    """Return the methods with their looks, ends and curves, which are shown at first, and what belongs together."""
    shown, front = featured(comparison), comparison.pareto()
    methods = [_method(comparison, label, looks) for label in comparison.main]
    for method in methods:
        method |= {"on": method["label"] in shown, "front": method["label"] in front}
    return {
        "slug": comparison.slug,
        "rounds": comparison.setting.rounds,
        "plain": method_name(comparison.reference),
        "arms": methods,
        "families": [
            {"name": method_name(label), "arms": [comparison.main.index(member) for member in members]}
            for label, members in (families(comparison) if crowded(comparison) else {}).items()
        ],
        "layers": _layers(comparison, shown),
        "partition": _partition(comparison),
    }


def crowded(comparison: Comparison) -> bool:
    """Return whether there are too many methods to name each, but several are settings of one."""
    return len(comparison.main) > _MANY and len(families(comparison)) < len(comparison.main)


def families(comparison: Comparison) -> dict[str, list[str]]:
    """Return the labels that differ in numbers alone, by bytes sent; under their common label."""
    found: dict[str, list[str]] = {}
    for label in sorted(comparison.main, key=lambda label: comparison.mean(label, "upload_bytes")):
        found.setdefault(_NUMBER_OPTION.sub("", label), []).append(label)
    return found


def featured(comparison: Comparison) -> list[str]:
    """Return the methods to draw curves of: all, or where there are many those that answer the question."""
    if len(comparison.main) <= _MANY:
        return comparison.main
    answering = {*comparison.pareto()[-_FEATURED:], *comparison.winners().least[:1], comparison.reference, "fedsparq"}
    return [label for label in comparison.main if label in answering]


def _method(comparison: Comparison, label: str, looks: Looks) -> dict[str, Any]:
    look = looks[label]
    return {
        "label": label,
        "name": method_name(label),
        "colour": list(look.shade),
        "mark": look.mark,
        "dash": look.dash,
        "seeds": len(comparison.seeds(label)),
        "times": _short(comparison.mean(label, "times_less")),
        "end": {"accuracy": _pair(comparison.spread(label, "accuracy")),
                "sent": _pair(comparison.spread(label, "upload_bytes"))},
        "sent": [_short(spread.mean) for spread in comparison.curve(label, "sent")],
        "accuracy": _curve(comparison.curve(label, "accuracy")),
        "loss": _curve(comparison.curve(label, "loss")),
        "kept": _curve(comparison.curve(label, "kept"), 100),
    }  # fmt: skip


def _layers(comparison: Comparison, shown: Sequence[str]) -> dict[str, Any] | None:
    """Return the share of each layer over the rounds of one run, of the first method whose layers differ."""
    for label in shown:
        for run in comparison.runs_of(label)[:1]:
            if len({round(share, 3) for record in run.rounds for share in record.kept_layers.values()}) > 1:
                names = list(run.rounds[0].kept_layers)
                shares = [[_short(100 * r.kept_layers.get(name, math.nan)) for r in run.rounds] for name in names]
                return {"name": method_name(label), "names": names, "shares": shares}
    return None


def _partition(comparison: Comparison) -> dict[str, Any] | None:
    runs = comparison.runs_of(comparison.labels[0])
    counts = runs[0].class_counts if runs else None
    if counts is None:
        return None
    return {"seed": runs[0].seed, "classes": list(counts.classes), "counts": [list(row) for row in counts.counts]}


def _curve(spreads: Sequence[Spread], factor: float = 1.0) -> dict[str, Any]:
    std = [_short(factor * spread.std) for spread in spreads]
    known = {"std": std} if any(value is not None for value in std) else {}
    return {"mean": [_short(factor * spread.mean) for spread in spreads]} | known


def _pair(value: Spread) -> list[float | None]:
    return [_short(value.mean), _short(value.std)]


def _short(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
