"""What a report says, before it is set as a page or as Markdown."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedsparq.lab.paper.claims import Claim, Verdict
from fedsparq.lab.paper.numbers import ARXIV, CAVEATS, deviation
from fedsparq.lab.report.findings import Finding, find
from fedsparq.lab.report.sidebyside import SideBySide, side_by_side
from fedsparq.lab.report.tables import Table
from fedsparq.lab.results.grouping import Bench, reference
from fedsparq.lab.results.records import LeftOut

_LIVE = ("answer", "bytes", "accuracy", "loss", "kept")
"""Figures that the page draws itself, from `Section.live`."""


class Shown(NamedTuple):
    """A figure as drawn: its file name without ending, a sentence, the SVG document."""

    name: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Section:
    """One bench, ready to be shown. `files` are its figures as files; `live` is what the page draws figures from."""

    bench: Bench
    files: Sequence[Shown]
    live: Mapping[str, Any]
    results: Table
    variants: Table | None
    attacks: Table | None = None

    @property
    def finding(self) -> Finding:
        return find(self.bench)

    @property
    def figures(self) -> list[Shown]:
        """What the page does not draw itself."""
        own = {f"{self.bench.slug}-{kind}" for kind in (*_LIVE, "variants", "attacks")}
        return [figure for figure in self.files if figure.name not in own]

    @property
    def shown_in_appendix(self) -> list[Shown]:
        return [figure for figure in self.files if figure not in self.variant_figures]

    @property
    def variant_figures(self) -> list[Shown]:
        return [figure for figure in self.files if figure.name == f"{self.bench.slug}-variants"]

    @property
    def attack_figures(self) -> list[Shown]:
        return [figure for figure in self.files if figure.name == f"{self.bench.slug}-attacks"]

    @property
    def more(self) -> str:
        """What the folded figures show, in a few words."""
        kinds = {"robustness": "robustness", "layers": "layer by layer", "partition": "classes at each client"}
        names = [figure.name.removeprefix(f"{self.bench.slug}-") for figure in self.figures]
        return ", ".join(text for kind, text in kinds.items() if any(name.startswith(kind) for name in names))

    @property
    def families(self) -> list[str]:
        """The methods of the small multiples, where there are many settings."""
        return [family["name"] for family in self.live["families"]]

    @property
    def plain(self) -> str:
        return reference(self.bench.arms).name

    @property
    def sparse(self) -> bool:
        return any(arm.spread("kept").mean < 0.999 for arm in self.bench.arms)

    @property
    def spread(self) -> str:
        """What bars and bands are."""
        seeds = sorted({len(arm.runs) for arm in self.bench.arms})
        if seeds[-1] == 1:
            return "none, with one seed"
        many = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
        return f"± one sample standard deviation over {many} seeds"

    @property
    def curve_caption(self) -> str:
        return f"Line: mean. Band: {self.spread}. Each point is one test after that round; nothing is smoothed."

    @property
    def caveats(self) -> list[str]:
        """What to bear in mind before ours is held against the paper's."""
        setting = self.bench.setting
        if not self.results.has_paper:
            return []
        departs = deviation(setting)
        said = [f"The paper's values are for another set-up: {departs}."] if departs else []
        return said + ([CAVEATS[setting.dataset]] if setting.iid and setting.dataset in CAVEATS else [])

    @property
    def facts(self) -> list[str]:
        """How the runs of a bench were made, as far as they all agree."""
        runs = [run for arm in self.bench.all_arms for run in arm.runs]
        setting = self.bench.setting
        facts = [f"model {setting.model}", f"{setting.clients} clients", f"{setting.rounds} rounds"]
        if runs[0].parameters:
            facts.append(f"{runs[0].parameters:,} parameters")
        if setting.train_examples:
            facts.append(f"{setting.train_examples:,} training examples")
        training = [run.spec.get("training", {}) for run in runs]
        for name, value in training[0].items():
            if all(other.get(name) == value for other in training):
                facts.append(f"{name.replace('_', ' ')} {value}")
        events = sum(len(r.events) for run in runs for r in run.rounds)
        if events:
            facts.append(f"{events} replies lost or refused")
        if any(not math.isfinite(run.loss) for run in runs):
            facts.append("some runs ended with a loss that is not finite")
        return facts


@dataclass(frozen=True)
class Document:
    """A whole report. `files` is the folder of figures and tables, relative to the page; `formats` those of figures."""

    title: str
    command: str
    files: str
    formats: Sequence[str]
    overview: Sequence[Shown]
    sections: Sequence[Section]
    claims: Sequence[Claim]
    left_out: Sequence[LeftOut]

    arxiv = ARXIV

    @property
    def compares(self) -> bool:
        """Whether there is more than one method anywhere."""
        return any(len(section.bench.arms) > 1 for section in self.sections)

    @property
    def counts(self) -> str:
        """How much there is of what."""
        benches = [section.bench for section in self.sections]
        numbers = {
            "run": sum(len(arm.runs) for bench in benches for arm in bench.all_arms),
            "method": len({arm.label for bench in benches for arm in bench.arms}),
            "setting": len(benches),
        }
        return ", ".join(f"{number} {noun}{'' if number == 1 else 's'}" for noun, number in numbers.items())

    @property
    def progress(self) -> str:
        """How many rounds are played of those planned."""
        runs = [run for section in self.sections for arm in section.bench.all_arms for run in arm.runs]
        return f"{sum(len(run.rounds) for run in runs)} of {sum(run.planned for run in runs)} rounds"

    @property
    def most_times(self) -> float:
        """The longest bar of the findings."""
        return max(section.finding.times for section in self.sections)

    @property
    def table(self) -> SideBySide:
        return side_by_side([section.bench for section in self.sections])

    @property
    def three(self) -> list[Shown]:
        """The figures of a page of reading: about all benches, else those of the first."""
        many = [figure for section in self.sections if section.families for figure in section.files[:1]]
        return [*self.overview, *many, *self.sections[0].files][:3]

    @property
    def verdicts(self) -> str:
        """How often each verdict on a claim was given."""
        counted = ((verdict, sum(claim.verdict is verdict for claim in self.claims)) for verdict in Verdict)
        return ", ".join(f"{verdict} {number}" for verdict, number in counted if number)

    @property
    def figure_names(self) -> set[str]:
        return {figure.name for section in self.sections for figure in section.files}

    @property
    def departures(self) -> list[str]:
        """Which settings are not the paper's own, and in what, each said once."""
        found: dict[str, list[str]] = {}
        for section in self.sections:
            said = deviation(section.bench.setting)
            if said:
                found.setdefault(said, []).append(section.bench.setting.heading)
        return [f"{', '.join(titles)}: {said}." for said, titles in found.items()]
