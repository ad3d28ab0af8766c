"""Aggregators against attacks: where runs differ in who is hostile and in how the server takes means, accuracy as a
table and as a heat map."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import groupby

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure

from fedsparq.lab.report.style import INK, MUTED, SURFACE, fitting, styled, text_width
from fedsparq.lab.report.tables import Cell, Measure, Row, Table
from fedsparq.lab.report.units import with_spread
from fedsparq.lab.results.grouping import Arm, Bench, Spread, method_name
from fedsparq.lab.results.records import Run

NOBODY = "nobody hostile"
MEAN = "the method's own mean"
SUCCESS = "backdoor_success"
_FIRST = {MEAN: 0, "robust": 1}
_WORST = 40.0
"""So many points lost, or more, is the darkest colour."""
_COLOURS = LinearSegmentedColormap.from_list("lost", [SURFACE.light, "#f2b5a0", "#c23b4b", "#5a1030"])
_CELL, _HIGH = 42.0, 19.0


def attack_table(bench: Bench) -> Table | None:
    """A row for each method and aggregator, a column for each attack; None unless there are several of both."""
    arms = {(*row_of(arm.runs[0]), attack_of(arm.runs[0])): arm for arm in bench.all_arms}
    rows = sorted({key[:2] for key in arms}, key=lambda row: (_place(bench, row[0]), _FIRST.get(row[1], 2), row[1]))
    attacks = sorted({key[2] for key in arms}, key=lambda attack: (attack != NOBODY, attack))
    if len(attacks) < 2 or NOBODY not in attacks or len({rule for _, rule in rows}) < 2:
        return None
    measures = [Measure(attack, attack, partial(with_spread, digits=2), max) for attack in attacks]
    measures.append(Measure(SUCCESS, "backdoor's success %", partial(with_spread, digits=1), min))
    found = [_filled(row, [arms.get((*row, attack)) for attack in attacks]) for row in rows]
    return Table(f"{bench.slug}-attacks", f"Accuracy % under attack, {bench.setting.subtitle}", measures, found)


def heat_map(bench: Bench, table: Table) -> Figure:
    """Accuracy in each cell; the colour is how far it lies below the method's own mean with nobody hostile."""
    measures, groups = table.measures[:-1], [list(rows) for _, rows in groupby(table.rows, lambda row: row.label)]
    names = [[row.name.removeprefix(f"{method_name(row.label)}, ") for row in rows] for rows in groups]
    left = 14 + max(text_width(name, 8.0) for group in names for name in group)
    wide, top, gap = left + _CELL * len(measures) + 10, 78.0, 22.0
    high = top + sum(_HIGH * len(rows) + gap for rows in groups) - gap / 2
    with styled():
        figure = Figure(figsize=(wide / 72, high / 72))
        FigureCanvasAgg(figure)
        figure.text(1 / wide, 1 - 15 / high, "Accuracy under attack, %", fontsize=10.5, fontweight="bold")
        said = f"{bench.setting.subtitle}; the darker, the farther below the method's own mean with nobody hostile"
        figure.text(1 / wide, 1 - 29 / high, said, fontsize=fitting(said, 8.0, wide - 2), color=MUTED.light)
        above = top
        for rows, shown in zip(groups, names, strict=True):
            own = _HIGH * len(rows)
            axes = figure.add_axes((left / wide, 1 - (above + own) / high, _CELL * len(measures) / wide, own / high))
            best = next((row.cells[0].value.mean for row in rows if row.name.endswith(MEAN)), math.nan)
            lost = [[best - cell.value.mean for cell in row.cells[:-1]] for row in rows]
            norm = PowerNorm(0.5, 0, _WORST, clip=True)
            axes.imshow(lost, _COLOURS, norm, aspect="auto", interpolation="nearest")
            for y, row in enumerate(rows):
                for x, cell in enumerate(row.cells[:-1]):
                    if math.isfinite(cell.value.mean):
                        colour = SURFACE.light if norm(lost[y][x]) > 0.45 else INK.light
                        axes.text(x, y, f"{cell.value.mean:.1f}", ha="center", va="center", fontsize=7.5, color=colour)
            axes.set_yticks(range(len(rows)), shown, fontsize=8, color=INK.light)
            axes.set_xticks([])
            axes.set_title(method_name(rows[0].label), loc="left", fontsize=8.5, fontweight="bold", pad=3)
            for spine in axes.spines.values():
                spine.set_visible(False)
            above += own + gap
        for number, measure in enumerate(measures):
            middle = (left + _CELL * (number + 0.5)) / wide
            figure.text(middle, 1 - 44 / high, "\n".join(measure.title.split(" ")), fontsize=7, ha="center", va="top")
    return figure


def row_of(run: Run) -> tuple[str, str]:
    """The method, and how the server takes the mean of its replies."""
    parts = [str(run.spec.get("aggregator") or MEAN), str(run.spec.get("optimizer") or "")]
    return run.method, " + ".join(filter(None, parts))


def attack_of(run: Run) -> str:
    """What hostile clients do in a run; a variant's name goes before the kinds."""
    faults = run.spec.get("faults", {})
    return str(run.spec.get("variant") or ", ".join(faults["hostile_kinds"])) if faults.get("hostile") else NOBODY


def _filled(row: tuple[str, str], arms: Sequence[Arm | None]) -> Row:
    method, rule = row
    values = [arm.accuracy if arm else Spread(math.nan, None, 0) for arm in arms]
    success = [
        run.rounds[-1].metrics[SUCCESS]
        for arm in arms
        if arm and attack_of(arm.runs[0]) == "backdoor"
        for run in arm.runs
        if SUCCESS in run.rounds[-1].metrics
    ]
    cells = [Cell(value, with_spread(value, 2) if value.n else "–") for value in values]
    cells.append(Cell(Spread.of(success), with_spread(Spread.of(success), 1)) if success else Cell(values[0], "–"))
    seeds = sorted({run.seed for arm in arms if arm for run in arm.runs})
    progress = next((arm.progress for arm in arms if arm and arm.progress), "")
    return Row(method, f"{method_name(method)}, {rule}", progress, seeds, cells)


def _place(bench: Bench, method: str) -> int:
    """Where a method stands among the others."""
    return next(number for number, arm in enumerate(bench.all_arms) if arm.runs[0].method == method)
