"""What a report says, before it is set as a page: findings, tables, and the numbers that figures are drawn from."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedsparq.errors import RunError
from fedsparq.lab.names import human_bytes, method_name
from fedsparq.lab.paper import ARXIV, CAVEATS, Claim, Verdict, deviation, judge
from fedsparq.lab.report.palette import Looks, looks
from fedsparq.lab.report.tables import ACCURACY, Table, attack_table, result_table, times_less, variant_table
from fedsparq.lab.results import Comparison, Results, Spread

_TITLE, _PAPER_TITLE = "What the bytes buy", "FedSparQ, reproduced"
_MAX_NAMED = 6


class Finding(NamedTuple):
    """Who sends least, for what accuracy, against whom; `remarks` say how far the seeds bear it out."""

    method: str
    accuracy: str
    sent: str
    times: float
    compared: str
    remarks: list[str]


def find(comparison: Comparison) -> Finding:
    """Return the answer in one setting, written."""
    winners, plain = comparison.winners(), comparison.reference
    least = winners.least

    def accuracy(label: str) -> str:
        return f"{ACCURACY.write(comparison.spread(label, 'accuracy'))} %"

    compared = ""
    if least[0] != plain:
        compared = f"{times_less(winners.times_less)} less than {method_name(plain)} at {accuracy(plain)}"
    remarks = []
    if winners.blurred:
        names = _names(winners.level)
        remarks.append(f"In accuracy these are equal, as the seeds spread wider than they differ: {names}.")
    if winners.one_seed and len(comparison.main) > 1:
        remarks.append("One seed, so the spread is not known: another seed may turn this round.")
    return Finding(
        method_name(least[0]) if len(least) == 1 else f"These are equal: {_names(least)}",
        " and ".join(accuracy(label) for label in least[:_MAX_NAMED]),
        human_bytes(comparison.mean(least[0], "upload_bytes")),
        winners.times_less,
        compared,
        remarks,
    )


def _names(labels: Sequence[str]) -> str:
    names = [method_name(label) for label in labels]
    if len(names) > _MAX_NAMED:
        return f"{', '.join(names[:_MAX_NAMED])} and {len(names) - _MAX_NAMED} more"
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


@dataclass(frozen=True)
class Section:
    """One comparison, ready to be shown; `data` is what its figures are drawn from."""

    comparison: Comparison
    finding: Finding
    data: Mapping[str, Any]
    results: Table
    variants: Table | None
    attacks: Table | None

    @property
    def figures(self) -> dict[str, str]:
        """The kinds of figures there are, with their titles."""
        comparison, found = self.comparison, dict[str, str]()
        if len(comparison.main) > 1:
            found["answer"] = "Accuracy for bytes sent"
            found["bytes"] = f"Times less upload than {method_name(comparison.reference)}"
        if len(comparison.played):
            found |= {"accuracy": "Test accuracy", "loss": "Test loss"}
            if any(comparison.mean(label, "kept") < 0.999 for label in comparison.main):
                found["kept"] = "Coordinates sent"
        if self.data["layers"]:
            found["layers"] = f"Share of each layer that {self.data['layers']['name']} sends"
        if self.data["partition"]:
            found["partition"] = f"Classes at each client, seed {self.data['partition']['seed']}"
        return found

    @property
    def spread(self) -> str:
        """What bars and bands are."""
        seeds = sorted({len(self.comparison.seeds(label)) for label in self.comparison.main})
        if seeds[-1] == 1:
            return "none, with one seed"
        return f"± one sample standard deviation over {seeds[0]}{f' to {seeds[-1]}' if len(seeds) > 1 else ''} seeds"

    @property
    def caveats(self) -> list[str]:
        """What to bear in mind before ours is held against the paper's."""
        setting = self.comparison.setting
        if not any(cell.paper_text for row in self.results.rows for cell in row.cells):
            return []
        departs = deviation(setting)
        found = [f"The paper's values are for another set-up: {departs}."] if departs else []
        return found + ([CAVEATS[setting.dataset]] if setting.iid and setting.dataset in CAVEATS else [])

    @property
    def facts(self) -> list[str]:
        """How the runs were made, as far as they all agree."""
        runs, setting = self.comparison.runs, self.comparison.setting
        facts = [f"model {setting.model}", f"{setting.clients} clients", f"{setting.rounds} rounds"]
        if self.comparison.privacy:
            facts.append(self.comparison.privacy)
        if setting.train_examples:
            facts.append(f"{setting.train_examples:,} training examples")
        if not runs:
            return facts
        if runs[0].parameters:
            facts.append(f"{runs[0].parameters:,} parameters")
        training = [found if isinstance(found := run.spec.get("training"), Mapping) else {} for run in runs]
        for name, value in training[0].items():
            if all(other.get(name) == value for other in training):
                facts.append(f"{name.replace('_', ' ')} {value}")
        events = sum(len(record.events) for run in runs for record in run.rounds)
        if events:
            facts.append(f"{events} replies lost or refused")
        if any(not math.isfinite(run.loss) for run in runs):
            facts.append("some runs ended with a loss that is not finite")
        return facts


@dataclass(frozen=True)
class Report:
    """A whole report; nothing in it is HTML or drawn."""

    title: str
    command: str
    results: Results
    sections: Sequence[Section]
    claims: Sequence[Claim]
    arxiv = ARXIV

    @property
    def skipped(self) -> Sequence[tuple[Path, str]]:
        return self.results.skipped

    @property
    def compares(self) -> bool:
        """Whether there is more than one method anywhere."""
        return any(len(section.comparison.main) > 1 for section in self.sections)

    @property
    def counts(self) -> str:
        """How much there is of what."""
        comparisons = [section.comparison for section in self.sections]
        numbers = {
            "run": sum(len(comparison.rows) for comparison in comparisons),
            "method": len({label for comparison in comparisons for label in comparison.main}),
            "setting": len(comparisons),
        }
        return ", ".join(f"{number} {noun}{'' if number == 1 else 's'}" for noun, number in numbers.items())

    @property
    def progress(self) -> str:
        """How many of the planned rounds are done."""
        rows = self.results.frame()
        return f"{int(rows['done'].sum())} of {int(rows['rounds'].sum())} rounds"

    @property
    def most_times(self) -> float:
        """The longest bar of the findings."""
        return max(section.finding.times for section in self.sections)

    @property
    def verdicts(self) -> str:
        """How often each verdict on a claim was given."""
        counted = ((verdict, sum(claim.verdict is verdict for claim in self.claims)) for verdict in Verdict)
        return ", ".join(f"{verdict} {number}" for verdict, number in counted if number)

    @property
    def anchors(self) -> set[str]:
        """What a claim can link to."""
        figures = {f"{section.comparison.slug}-{kind}" for section in self.sections for kind in section.figures}
        varied = {f"{section.comparison.slug}-variants" for section in self.sections if section.variants}
        return figures | varied | {section.comparison.slug for section in self.sections}

    @property
    def departures(self) -> list[str]:
        """Which settings are not the paper's own, and in what, each stated once."""
        found: dict[str, list[str]] = {}
        for section in self.sections:
            departs = deviation(section.comparison.setting)
            if departs:
                found.setdefault(departs, []).append(section.comparison.heading)
        return [f"{', '.join(titles)}: {departs}." for departs, titles in found.items()]


def build_report(results: Results, *, title: str | None = None, paper: bool = False, command: str = "") -> Report:
    """Return all that a report about some runs says; with `paper`, the paper's claims are judged by them."""
    comparisons = results.comparisons()
    if not comparisons:
        reasons = "\n".join(f"  {path}: {reason}" for path, reason in results.skipped) or "  no path was given"
        raise RunError(f"no finished run to report on; `fedsparq run` and `fedsparq compare` write them\n{reasons}")
    look = looks(label for comparison in comparisons for label in comparison.labels)
    sections = [
        Section(
            comparison,
            find(comparison),
            comparison_data(comparison, look),
            result_table(comparison, paper),
            variant_table(comparison) if comparison.variants else None,
            attack_table(comparison),
        )
        for comparison in comparisons
    ]
    claims = judge(comparisons) if paper else []
    return Report(title or (_PAPER_TITLE if paper else _TITLE), command, results, sections, claims)


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
