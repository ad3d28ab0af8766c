"""Results in rows: mean ± spread over seeds beside the paper's value. HTML and Markdown are made by the templates."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fedsparq.lab.paper.numbers import SETUPS, result
from fedsparq.lab.report.units import bytes_with_spread, times_less, with_spread
from fedsparq.lab.results.grouping import Arm, Bench, Spread, reference
from fedsparq.lab.results.units import human_bytes


@dataclass(frozen=True)
class Measure:
    """A column: which number, how it is written, which end of it is better."""

    key: str
    title: str
    write: Callable[[Spread], str]
    best: Callable[[Iterable[float]], float] | None


ACCURACY = Measure("accuracy", "Accuracy %", partial(with_spread, digits=2), max)
LOSS = Measure("loss", "Loss", partial(with_spread, digits=3), min)
ROBUST1 = Measure("robust1", "Robust₁", partial(with_spread, digits=2), max)
ROBUST2 = Measure("robust2", "Robust₂", partial(with_spread, digits=1), max)
SENT = Measure("upload_bytes", "Upload, as sent", bytes_with_spread, min)
COUNTED = Measure("upload_bytes_paper", "Upload, paper accounting", bytes_with_spread, min)
KEPT = Measure("kept", "Sent share", partial(with_spread, digits=1, suffix=" %", factor=100), None)
DOWN = Measure("download_bytes", "Download, as sent", bytes_with_spread, min)
REACH = Measure("reach_bytes", "Upload to FedAvg − 0.5", bytes_with_spread, min)
TIMES = Measure("times_less", "Times less", lambda value: times_less(value.mean), max)


@dataclass(frozen=True)
class Cell:
    """One number with its spread and, where the paper has one, the paper's."""

    value: Spread
    text: str
    best: bool = False
    paper: float | None = None
    paper_text: str = ""


@dataclass(frozen=True)
class Row:
    """One arm; `progress` where its runs have not ended."""

    label: str
    name: str
    progress: str
    seeds: Sequence[int]
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Table:
    """Rows of one bench; `name` is that of its files."""

    name: str
    caption: str
    measures: Sequence[Measure]
    rows: Sequence[Row]

    @property
    def has_paper(self) -> bool:
        return any(cell.paper is not None for row in self.rows for cell in row.cells)


def result_table(bench: Bench) -> Table:
    """Every method of a bench."""
    measures = [ACCURACY, SENT, *([TIMES] if len(bench.arms) > 1 else []), LOSS, COUNTED, KEPT]
    if not bench.setting.iid:
        measures[-2:-2] = [ROBUST1, ROBUST2]
    if bench.has_goal:
        measures.append(REACH)
    if any("down:" in arm.label for arm in bench.arms):
        measures.append(DOWN)
    return _table(f"{bench.slug}-results", bench.setting.subtitle, bench, measures, bench.arms)


def variant_table(bench: Bench) -> Table:
    """FedSparQ's variants, its default first; named by their options."""
    arms = [*filter(None, [bench.arm("fedsparq")]), *bench.variants]
    caption = f"FedSparQ's variants, {bench.setting.subtitle}"
    table = _table(f"{bench.slug}-variants", caption, bench, [ACCURACY, SENT, TIMES, LOSS, COUNTED, KEPT], arms)
    return replace(table, rows=[replace(row, name=arm.options) for row, arm in zip(table.rows, arms, strict=True)])


def _table(name: str, caption: str, bench: Bench, measures: Sequence[Measure], arms: Sequence[Arm]) -> Table:
    columns = [_column(bench, measure, arms) for measure in measures]
    rows = [
        Row(arm.label, arm.name, arm.progress, [run.seed for run in arm.runs], cells)
        for arm, cells in zip(arms, zip(*columns, strict=True), strict=True)
    ]
    return Table(name, caption, measures, rows)


def _column(bench: Bench, measure: Measure, arms: Sequence[Arm]) -> list[Cell]:
    values = [_value(bench, arm, measure) for arm in arms]
    finite = [value for value in values if math.isfinite(value.mean)]
    best = None
    if measure.best and len(finite) > 1:
        end = measure.best(value.mean for value in finite)
        best = next(value for value in finite if value.mean == end)
    return [
        Cell(value, _text(bench, arm, measure, value), _is_best(value, best), *_paper_value(bench, arm, measure))
        for arm, value in zip(arms, values, strict=True)
    ]


def _value(bench: Bench, arm: Arm, measure: Measure) -> Spread:
    if measure is TIMES:
        whole = reference(bench.arms).sent.mean
        return Spread.of([whole / run.upload_bytes for run in arm.runs])
    if measure is REACH:
        reached = bench.reached(arm)
        return Spread.of(reached if len(reached) == len(arm.runs) else [math.nan])
    return arm.spread(measure.key)


def _text(bench: Bench, arm: Arm, measure: Measure, value: Spread) -> str:
    reached = len(bench.reached(arm)) if measure is REACH else len(arm.runs)
    if reached < len(arm.runs):
        return f"{reached} of {len(arm.runs)} seeds" if reached else "not reached"
    return measure.write(value)


def _is_best(value: Spread, best: Spread | None) -> bool:
    """The best of a column, and whatever the seeds do not keep apart from it."""
    return best is not None and math.isfinite(value.mean) and not value.apart(best)


def _paper_value(bench: Bench, arm: Arm, measure: Measure) -> tuple[float | None, str]:
    setting = bench.setting
    known = result(setting.dataset, setting.partition, arm.label)
    if known is None or measure is SENT:
        return None, ""
    if measure is not COUNTED:
        number: float | None = getattr(known, measure.key, None)
        return number, "" if number is None else f"{number:g}"
    setup, counted = SETUPS[setting.dataset], known.upload_bytes
    if (setup.rounds, setup.clients) != (setting.rounds, setting.clients) or counted is None:
        return None, ""
    chart = known.chart_bytes or counted
    differs = not 2 / 3 < chart / counted < 1.5
    return counted, human_bytes(counted) + (f", its chart {human_bytes(chart)}" if differs else "")


def to_csv(table: Table) -> str:
    """Full precision: every number reads back as the very float it was computed as."""
    parts = ("mean", "std", "in_paper") if table.has_paper else ("mean", "std")
    lines: list[list[object]] = [["method", "seeds", *(f"{m.key}_{part}" for m in table.measures for part in parts)]]
    for row in table.rows:
        numbers = [(cell.value.mean, cell.value.std, cell.paper)[: len(parts)] for cell in row.cells]
        lines.append([row.label, " ".join(map(str, row.seeds)), *(number for cell in numbers for number in cell)])
    return _csv(lines)


def rounds_csv(bench: Bench) -> str:
    """Every round of every run of a bench: what the curves are drawn from."""
    keys = ("round", "accuracy", "loss", "upload_bytes", "download_bytes", "upload_bytes_paper", "kept")
    rounds = ((arm, run, r) for arm in bench.all_arms for run in arm.runs for r in run.rounds)
    lines = ([arm.label, run.seed, *(getattr(r, key) for key in keys)] for arm, run, r in rounds)
    return _csv([["method", "seed", *keys], *lines])


def _csv(lines: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def to_latex(table: Table) -> str:
    """A booktabs table; ours, then the paper's in parentheses."""
    closing = "; the original paper's value in parentheses." if table.has_paper else "."
    titles = ["Method", *(_tex(m.title) for m in table.measures), "$n$"]
    rows = [[_tex(row.name), *map(_tex_cell, row.cells), str(len(row.seeds))] for row in table.rows]
    head, *body = ("    " + " & ".join(row) + " \\\\\n" for row in [titles, *rows])
    return (
        "% \\usepackage{booktabs}\n\\begin{table}\n  \\centering\n"
        f"  \\caption{{{_tex(table.caption)}. Mean $\\pm$ sample standard deviation over seeds{closing}}}\n"
        f"  \\label{{tab:{table.name}}}\n  \\begin{{tabular}}{{l{'r' * (len(table.measures) + 1)}}}\n"
        f"    \\toprule\n{head}    \\midrule\n{''.join(body)}    \\bottomrule\n  \\end{{tabular}}\n\\end{{table}}\n"
    )


def _tex_cell(cell: Cell) -> str:
    text = f"\\textbf{{{_tex(cell.text)}}}" if cell.best else _tex(cell.text)
    return f"{text} ({_tex(cell.paper_text)})" if cell.paper_text else text


_TEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$"}
    | {"·": "$\\cdot$", "−": "$-$", "₁": "$_1$", "₂": "$_2$", "<": "$<$", ">": "$>$"}
)


def _tex(text: str) -> str:
    return text.translate(_TEX)
