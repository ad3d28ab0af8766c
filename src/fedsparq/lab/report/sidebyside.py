"""One table about many benches: settings down, the methods most of them share across."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fedsparq.lab.report.frontier import featured
from fedsparq.lab.report.tables import ACCURACY
from fedsparq.lab.report.units import times_less
from fedsparq.lab.results.grouping import Bench, method_name, reference

_MOST = 6


class Line(NamedTuple):
    """One bench: accuracy and times less of each method, empty where it was not run."""

    title: str
    cells: list[str]


class SideBySide(NamedTuple):
    """The table."""

    titles: list[str]
    rows: list[Line]


def side_by_side(benches: Sequence[Bench]) -> SideBySide:
    """The methods that at least half of the benches have, in their order; at most six, those that answer most often."""
    counted = Counter(arm.label for bench in benches for arm in bench.arms)
    answering = Counter(arm.label for bench in benches for arm in featured(bench))
    shared = [label for label, number in counted.items() if 2 * number >= len(benches)]
    chosen = sorted(shared, key=lambda label: -answering[label])[:_MOST]
    labels = [label for label in shared if label in chosen]
    return SideBySide([method_name(label) for label in labels], [_line(bench, labels) for bench in benches])


def _line(bench: Bench, labels: Sequence[str]) -> Line:
    plain = reference(bench.arms)
    cells = []
    for label in labels:
        arm = bench.arm(label)
        ratio = f", {times_less(plain.sent.mean / arm.sent.mean)}" if arm and arm.label != plain.label else ""
        cells.append(ACCURACY.write(arm.accuracy) + ratio if arm else "")
    return Line(bench.setting.heading, cells)
