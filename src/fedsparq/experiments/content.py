"""What a report says, before it is set as a page or as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedsparq.experiments.claims import Claim
from fedsparq.experiments.grouping import Bench, Spread, frugal, reference
from fedsparq.experiments.paper import CAVEATS, deviation
from fedsparq.experiments.results import LeftOut
from fedsparq.experiments.tables import ACCURACY, Table
from fedsparq.experiments.units import human_bytes

QUESTION = "How few bytes can the clients of a federation send before accuracy suffers?"
READING = (
    ("As sent", "the length of the messages that left a client, mean over clients, summed over rounds."),
    (
        "Paper accounting",
        "the original paper's formula for the same messages: 4 bytes a float32, 2 bytes a float16, 4 bytes more for "
        "each position sent.",
    ),
    (
        "±",
        "sample standard deviation over seeds; not written for one seed, nor where it is below the last digit shown. "
        "Bold is the best mean of a column.",
    ),
    ("Robust₁, Robust₂", "accuracy − loss and accuracy / loss, accuracy in percent, as the paper defines them."),
    (
        "Upload to FedAvg − 0.5",
        "what a client had sent when the test accuracy first came within half a point of FedAvg's final one.",
    ),
    ("Staircase", "the best accuracy so many bytes can buy; filled marks stand on it, hollow ones below."),
)


@dataclass(frozen=True)
class Shown:
    """A figure as drawn: its file name without ending, a sentence, the SVG document."""

    name: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Section:
    """One bench, ready to be shown."""

    bench: Bench
    answer: Shown
    figures: Sequence[Shown]
    results: Table
    variants: Table | None
    facts: Sequence[str]


@dataclass(frozen=True)
class Content:
    """A whole report. `files` is the folder of figures and tables, relative to the page."""

    title: str
    command: str
    files: str
    sections: Sequence[Section]
    claims: Sequence[Claim]
    left_out: Sequence[LeftOut]

    @property
    def figure_names(self) -> set[str]:
        return {figure.name for section in self.sections for figure in (section.answer, *section.figures)}


def caveats(section: Section) -> list[str]:
    """What to bear in mind before ours is held against the paper's."""
    if not section.results.has_paper:
        return []
    departs = deviation(section.bench.setting)
    said = [f"The paper's values are for another set-up: {departs}."] if departs else []
    if section.bench.setting.iid and section.bench.setting.dataset in CAVEATS:
        said.append(CAVEATS[section.bench.setting.dataset])
    return said


def departures(content: Content) -> list[str]:
    """Which settings are not the paper's own, and in what, each said once."""
    found: dict[str, list[str]] = {}
    for section in content.sections:
        said = deviation(section.bench.setting)
        if said:
            found.setdefault(said, []).append(section.bench.setting.heading)
    return [f"{', '.join(titles)}: {said}." for said, titles in found.items()]


@dataclass(frozen=True)
class Finding:
    """The answer for one bench in numbers."""

    where: str
    method: str
    accuracy: str
    sent: str
    compared: str


def finding(bench: Bench) -> Finding:
    """Who sends least within a point of the best accuracy, and what that saves."""
    least, plain = frugal(bench.arms), reference(bench.arms)
    sent = least.spread("upload_bytes").mean
    compared = ""
    if least.label != plain.label and sent > 0:
        times = plain.spread("upload_bytes").mean / sent
        compared = f"{times:.1f} times less than {plain.name} at {_percent(plain.spread('accuracy'))}"
    return Finding(bench.setting.heading, least.name, _percent(least.spread("accuracy")), human_bytes(sent), compared)


def _percent(value: Spread) -> str:
    return f"{ACCURACY.write.spread(value)} %"
