"""What the interactive figures of a page are drawn from: one JSON object for each bench."""

import json
import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from fedsparq.lab.report.frontier import crowded, families, featured
from fedsparq.lab.report.looks import Looks
from fedsparq.lab.results.grouping import Arm, Bench, Spread, method_name, pareto, reference

_DIGITS = 7


def bench_data(bench: Bench, looks: Looks) -> dict[str, Any]:
    """Methods with their looks, ends and curves; which are shown at first; which belong together in small multiples."""
    first = {arm.label for arm in featured(bench)}
    front = {arm.label for arm in pareto(bench.arms)}
    plain = reference(bench.arms)
    return {
        "slug": bench.slug,
        "rounds": bench.setting.rounds,
        "plain": plain.name,
        "arms": [
            _arm(arm, looks, plain) | {"on": arm.label in first, "front": arm.label in front} for arm in bench.arms
        ],
        "families": [
            {"name": method_name(label), "arms": [bench.arms.index(arm) for arm in arms]}
            for label, arms in (families(bench.arms) if crowded(bench) else {}).items()
        ],
    }


def embed(data: object) -> Markup:
    """JSON that is safe inside a script element."""
    return Markup(json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


def _arm(arm: Arm, looks: Looks, plain: Arm) -> dict[str, Any]:
    look = looks[arm.label]
    return {
        "label": arm.label,
        "name": arm.name,
        "colour": list(look.shade),
        "mark": look.mark,
        "dash": look.dash,
        "seeds": len(arm.runs),
        "times": _short(plain.sent.mean / arm.sent.mean),
        "end": {"accuracy": _pair(arm.accuracy), "sent": _pair(arm.sent)},
        "sent": [_short(amount) for amount in arm.sent_so_far()],
        "accuracy": _curve(arm.curve(lambda r: r.accuracy)),
        "loss": _curve(arm.curve(lambda r: r.loss)),
        "kept": _curve(arm.curve(lambda r: 100 * r.kept)),
    }


def _curve(spreads: Sequence[Spread]) -> dict[str, Any]:
    std = [_short(s.std) if s.std is not None else None for s in spreads]
    return {"mean": [_short(s.mean) for s in spreads]} | ({"std": std} if any(s is not None for s in std) else {})


def _pair(value: Spread) -> list[float | None]:
    return [_short(value.mean), None if value.std is None else _short(value.std)]


def _short(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
