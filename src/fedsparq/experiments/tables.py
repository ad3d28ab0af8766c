"""Results in rows: mean ± spread over seeds beside the paper's value, for a page, a paper and a program."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape

from fedsparq.experiments import paper
from fedsparq.experiments.grouping import Arm, Bench, Spread
from fedsparq.experiments.units import ByteWriter, Writer, human_bytes


@dataclass(frozen=True)
class Measure:
    """A column: which number, how it is written, which end of it is better."""

    key: str
    title: str
    write: Writer
    best: Callable[[Iterable[float]], float] | None


ACCURACY = Measure("accuracy", "Accuracy %", Writer(2), max)
LOSS = Measure("loss", "Loss", Writer(3), min)
ROBUST1 = Measure("robust1", "Robust₁", Writer(2), max)
ROBUST2 = Measure("robust2", "Robust₂", Writer(1), max)
SENT = Measure("upload_bytes", "Upload, as sent", ByteWriter(), min)
COUNTED = Measure("upload_bytes_paper", "Upload, paper accounting", ByteWriter(), min)
KEPT = Measure("kept", "Sent share", Writer(1, " %", 100), None)
DOWN = Measure("download_bytes", "Download, as sent", ByteWriter(), min)
REACH = Measure("reach_bytes", "Upload to FedAvg − 0.5", ByteWriter("not reached"), min)


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
    """One arm."""

    label: str
    name: str
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
    measures = [ACCURACY, LOSS, SENT, COUNTED, KEPT]
    if not bench.setting.iid:
        measures[2:2] = [ROBUST1, ROBUST2]
    if bench.goal is not None:
        measures.append(REACH)
    if any("down:" in arm.label for arm in bench.arms):
        measures.append(DOWN)
    return _table(f"{bench.slug}-results", bench.setting.subtitle, bench, measures, bench.arms)


def variant_table(bench: Bench) -> Table:
    """FedSparQ's variants, its default first."""
    default = bench.arm("fedsparq")
    arms = [*([default] if default else []), *bench.variants]
    caption = f"FedSparQ's variants, {bench.setting.subtitle}"
    table = _table(f"{bench.slug}-variants", caption, bench, [ACCURACY, LOSS, SENT, COUNTED, KEPT], arms)
    return replace(table, rows=[replace(row, name=row.label.partition(" ")[2] or "default") for row in table.rows])


def _table(name: str, caption: str, bench: Bench, measures: Sequence[Measure], arms: Sequence[Arm]) -> Table:
    best: dict[str, float] = {}
    for measure in measures:
        means = [m for m in (bench.spread(arm, measure.key).mean for arm in arms) if math.isfinite(m)]
        if measure.best and len(means) > 1:
            best[measure.key] = measure.best(means)
    rows = []
    for arm in arms:
        cells = []
        for measure in measures:
            value = bench.spread(arm, measure.key)
            number, text = _paper_value(bench, arm, measure)
            bold = best.get(measure.key) == value.mean
            cells.append(Cell(value, measure.write.spread(value), bold, number, text))
        rows.append(Row(arm.label, arm.name, [run.seed for run in arm.runs], cells))
    return Table(name, caption, measures, rows)


def _paper_value(bench: Bench, arm: Arm, measure: Measure) -> tuple[float | None, str]:
    setting = bench.setting
    known = paper.result(setting.dataset, setting.partition, arm.label)
    if known is None:
        return None, ""
    if measure is COUNTED:
        setup = paper.SETUPS[setting.dataset]
        if (setup.rounds, setup.clients) != (setting.rounds, setting.clients) or known.upload_bytes is None:
            return None, ""
        text = human_bytes(known.upload_bytes)
        chart = known.chart_bytes or known.upload_bytes
        if not 2 / 3 < chart / known.upload_bytes < 1.5:
            text += f", its chart {human_bytes(chart)}"
        return known.upload_bytes, text
    number: float | None = getattr(known, measure.key, None) if measure is not SENT else None
    return number, "" if number is None else f"{number:g}"


def to_html(table: Table) -> str:
    """The paper's value stands in small print below ours, so that the table fits a phone."""
    head = "".join(f'<th scope="col">{escape(m.title)}</th>' for m in table.measures)
    rows = []
    for row in table.rows:
        cells = "".join(_html_cell(cell) for cell in row.cells)
        rows.append(f'<tr><th scope="row">{escape(row.name)}</th>{cells}<td>{len(row.seeds)}</td></tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.caption)}">'
        f'<table><thead><tr><th scope="col">Method</th>{head}<th scope="col">Seeds</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _html_cell(cell: Cell) -> str:
    text = escape(cell.text)
    shown = f"<strong>{text}</strong>" if cell.best else text
    below = f"<small>paper {escape(cell.paper_text)}</small>" if cell.paper_text else ""
    return f'<td title="{cell.value.mean!r}">{shown}{below}</td>'


def to_markdown(table: Table) -> str:
    lines = [
        "| Method | " + " | ".join(m.title for m in table.measures) + " | Seeds |",
        "|---|" + "---:|" * (len(table.measures) + 1),
    ]
    for row in table.rows:
        cells = []
        for cell in row.cells:
            shown = f"**{cell.text}**" if cell.best else cell.text
            cells.append(f"{shown}<br><sub>paper {cell.paper_text}</sub>" if cell.paper_text else shown)
        lines.append(f"| {row.name} | " + " | ".join(cells) + f" | {len(row.seeds)} |")
    return "\n".join(lines).replace("\u00a0", " ") + "\n"


def to_csv(table: Table) -> str:
    """Full precision: every number reads back as the very float it was computed as."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    head = ["method", "seeds"]
    for measure in table.measures:
        head += [f"{measure.key}_mean", f"{measure.key}_std"]
        head += [f"{measure.key}_in_paper"] if table.has_paper else []
    write(head)
    for row in table.rows:
        line = [row.label, " ".join(map(str, row.seeds))]
        for cell in row.cells:
            line += [_exact(cell.value.mean), _exact(cell.value.std)]
            line += [_exact(cell.paper)] if table.has_paper else []
        write(line)
    return out.getvalue()


def rounds_csv(bench: Bench) -> str:
    """Every round of every run of a bench: what the curves are drawn from."""
    keys = ("accuracy", "loss", "upload_bytes", "download_bytes", "upload_bytes_paper", "kept")
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    write(["method", "seed", "round", *keys])
    for arm in bench.all_arms:
        for run in arm.runs:
            for r in run.rounds:
                write([arm.label, run.seed, r.round, *(_exact(getattr(r, key)) for key in keys)])
    return out.getvalue()


def _exact(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def to_latex(table: Table) -> str:
    """A booktabs table; ours, then the paper's in parentheses."""
    lines = [
        "% \\usepackage{booktabs}",
        "\\begin{table}",
        "  \\centering",
        f"  \\caption{{{_tex(table.caption)}. Mean $\\pm$ sample standard deviation over seeds"
        + ("; the original paper's value in parentheses.}" if table.has_paper else ".}"),
        f"  \\label{{tab:{table.name}}}",
        f"  \\begin{{tabular}}{{l{'r' * (len(table.measures) + 1)}}}",
        "    \\toprule",
        "    " + " & ".join(["Method", *(_tex(m.title) for m in table.measures), "$n$"]) + " \\\\",
        "    \\midrule",
    ]
    for row in table.rows:
        cells = []
        for cell in row.cells:
            text = _tex(cell.text)
            text = f"\\textbf{{{text}}}" if cell.best else text
            cells.append(f"{text} ({_tex(cell.paper_text)})" if cell.paper_text else text)
        lines.append("    " + " & ".join([_tex(row.name), *cells, str(len(row.seeds))]) + " \\\\")
    lines += ["    \\bottomrule", "  \\end{tabular}", "\\end{table}", ""]
    return "\n".join(lines)


_TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "±": "$\\pm$",
    "·": "$\\cdot$",
    "−": "$-$",
    "₁": "$_1$",
    "₂": "$_2$",
    "<": "$<$",
    ">": "$>$",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)
