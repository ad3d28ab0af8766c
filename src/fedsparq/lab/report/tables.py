"""Results in rows, mean ± deviation over seeds: for the page, for LaTeX and for the terminal."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

from fedsparq.lab.names import human_bytes, method_name
from fedsparq.lab.paper import SETUPS, result
from fedsparq.lab.results import Comparison, Results, Spread

_UNKNOWN = "not finite"
MEAN, NO_ATTACK, SUCCESS = "the method's own mean", "nobody hostile", "backdoor_success"
_FIRST_RULES = {MEAN: 0, "robust": 1}
_MAX_POINTS_LOST = 40.0
"""From here on a cell of the table of attacks has the darkest color."""
_COLUMN_GAP = 2
_CAPTION = "up, down: bytes per client over the run"
_KEPT_CAPTION = "; kept: share of the coordinates sent"


def with_spread(value: Spread, digits: int, suffix: str = "", factor: float = 1.0) -> str:
    """Return `97.12 ± 0.46`, or the mean alone where the deviation is below the last digit."""
    if not math.isfinite(value.mean):
        return _UNKNOWN
    std = 0.0 if math.isnan(value.std) else value.std
    mean, spread = (f"{number * factor:.{digits}f}" for number in (value.mean, std))
    return f"{mean} ± {spread}{suffix}" if float(spread) else f"{mean}{suffix}"


def bytes_with_spread(value: Spread) -> str:
    """Return `6.24 ± 0.12 MB`: mean and deviation share the mean's unit."""
    if not math.isfinite(value.mean):
        return _UNKNOWN
    number, unit = human_bytes(value.mean).split(" ")
    return with_spread(value, len(number.partition(".")[2]), f" {unit}", float(number) / (value.mean or 1.0))


def times_less(ratio: float) -> str:
    """Return `105.7x`: how many times less was sent."""
    return f"{ratio:,.1f}x"


@dataclass(frozen=True)
class Measure:
    """A column: which number, how it is written, which end of it is better."""

    key: str
    title: str
    write: Callable[[Spread], str]
    best: Callable[[Iterable[float]], float] | None = None


ACCURACY = Measure("accuracy", "Accuracy %", partial(with_spread, digits=2), max)
LOSS = Measure("loss", "Loss", partial(with_spread, digits=3), min)
UP = Measure("upload_bytes", "Up", bytes_with_spread, min)
DOWN = Measure("download_bytes", "Down", bytes_with_spread, min)
BOTH = Measure("both_bytes", "Both", bytes_with_spread, min)
TIMES = Measure("times_less", "Times less up", lambda value: times_less(value.mean), max)
KEPT = Measure("kept", "Sent %", partial(with_spread, digits=1, factor=100))
REACH = Measure("reach_bytes", "Up to FedAvg − 0.5", bytes_with_spread, min)
PAPER_UP = Measure("upload_bytes_paper", "Up, paper accounting", bytes_with_spread, min)
ROBUST = (
    Measure("robust1", "Robust₁", partial(with_spread, digits=2), max),
    Measure("robust2", "Robust₂", partial(with_spread, digits=1), max),
)


@dataclass(frozen=True)
class Cell:
    """One number with its spread; the paper's where it has one; `lost` is the share of the darkest color."""

    value: Spread
    text: str
    best: bool = False
    paper_text: str = ""
    lost: float | None = None


@dataclass(frozen=True)
class Row:
    """One method; `progress` where its runs have not ended."""

    label: str
    name: str
    progress: str
    seeds: Sequence[int]
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Table:
    """Rows of one comparison; `name` is that of its file."""

    name: str
    caption: str
    measures: Sequence[Measure]
    rows: Sequence[Row]


def result_table(comparison: Comparison, paper: bool = False) -> Table:
    """Return every method; with `paper`, the paper's measures and values instead of the downloads."""
    measures = [ACCURACY, UP, *([TIMES] if len(comparison.main) > 1 else [])]
    measures += [PAPER_UP] if paper else [DOWN, BOTH]
    measures += [LOSS, KEPT, *(ROBUST if paper and not comparison.setting.iid else ())]
    if "fedavg" in comparison.labels and comparison.curve("fedavg", "accuracy"):
        measures.append(REACH)
    return _table(f"{comparison.slug}-results", comparison.subtitle, comparison, measures, comparison.main, paper)


def variant_table(comparison: Comparison) -> Table:
    """Return FedSparQ's variants, its default first, by their options."""
    labels = [label for label in comparison.labels if label == "fedsparq" or label in comparison.variants]
    caption = f"FedSparQ's variants, {comparison.subtitle}"
    return _table(f"{comparison.slug}-variants", caption, comparison, [ACCURACY, UP, TIMES, LOSS, KEPT], labels)


def attack_table(comparison: Comparison) -> Table | None:
    """Return accuracy by rule and attack; None unless there are several of both."""
    if "attack" not in comparison.rows or "aggregator" not in comparison.rows:
        return None
    rows = comparison.rows.assign(
        rule=[text or MEAN for text in comparison.rows["aggregator"]],
        attack=[text or NO_ATTACK for text in comparison.rows["attack"]],
    )
    attacks = sorted(rows["attack"].unique(), key=lambda attack: (attack != NO_ATTACK, attack))
    if len(attacks) < 2 or NO_ATTACK not in attacks or rows["rule"].nunique() < 2:
        return None
    found = []
    methods = list(dict.fromkeys(label.partition(" ")[0] for label in comparison.labels))
    order = lambda key: (methods.index(key[0]), _FIRST_RULES.get(key[1], 2), key[1])  # noqa: E731
    groups = dict(list(rows.groupby(["method", "rule"])))
    for method, rule in sorted(groups, key=order):
        group = groups[method, rule]
        plain = rows[(rows["method"] == method) & (rows["rule"] == MEAN) & (rows["attack"] == NO_ATTACK)]
        best = plain["accuracy"].mean()
        spreads = [Spread.of(group.loc[group["attack"] == attack, "accuracy"]) for attack in attacks]
        cells = [_attack_cell(value, best) for value in spreads]
        success = group.loc[group["attack"] == "backdoor"].get(f"metric.{SUCCESS}", [])
        value = Spread.of([one for one in success if math.isfinite(one)])
        cells.append(Cell(value, with_spread(value, 1) if value.n else "–"))
        done, planned = int(group["done"].sum()), int(group["rounds"].sum())
        progress = "" if done == planned else f"{done} of {planned} rounds"
        seeds = sorted(set(map(int, group["seed"])))
        found.append(Row(method, f"{method_name(method)}, {rule}", progress, seeds, cells))
    measures = [Measure(attack, attack, partial(with_spread, digits=2), max) for attack in attacks]
    measures.append(Measure(SUCCESS, "backdoor's success %", partial(with_spread, digits=1), min))
    return Table(f"{comparison.slug}-attacks", f"Accuracy % under attack, {comparison.subtitle}", measures, found)


def _attack_cell(value: Spread, best: float) -> Cell:
    if not value.n:
        return Cell(value, "–")
    lost = max(0.0, best - value.mean) / _MAX_POINTS_LOST
    return Cell(value, with_spread(value, 2), lost=min(1.0, lost**0.5) if math.isfinite(lost) else None)


def _table(
    name: str,
    caption: str,
    comparison: Comparison,
    measures: Sequence[Measure],
    labels: Sequence[str],
    paper: bool = False,
) -> Table:
    columns = [_column(comparison, measure, labels, paper) for measure in measures]
    rows = [
        Row(label, method_name(label), comparison.progress(label), comparison.seeds(label), cells)
        for label, cells in zip(labels, zip(*columns, strict=True), strict=True)
    ]
    return Table(name, caption, measures, rows)


def _column(comparison: Comparison, measure: Measure, labels: Sequence[str], paper: bool) -> list[Cell]:
    values = {label: comparison.spread(label, measure.key) for label in labels}
    finite = [value for value in values.values() if math.isfinite(value.mean)]
    best = None
    if measure.best and len(finite) > 1:
        end = measure.best(value.mean for value in finite)
        best = next(value for value in finite if value.mean == end)
    cells = []
    for label, value in values.items():
        text = _text(comparison, label, measure, value)
        is_best = False
        if best is not None and math.isfinite(value.mean):
            is_best = not value.differs(best) or text == measure.write(best)
        cells.append(Cell(value, text, is_best, _paper_text(comparison, label, measure) if paper else ""))
    return cells


def _text(comparison: Comparison, label: str, measure: Measure, value: Spread) -> str:
    if measure is not REACH or math.isfinite(value.mean):
        return measure.write(value)
    rows = comparison.measured
    reached = int(rows.loc[rows["label"] == label, "reach_bytes"].notna().sum())
    return f"{reached} of {value.n} seeds" if reached else "not reached"


def _paper_text(comparison: Comparison, label: str, measure: Measure) -> str:
    setting = comparison.setting
    known = result(setting.dataset, setting.partition, label)
    if known is None or measure is UP:
        return ""
    if measure.key != "upload_bytes_paper":
        number: float | None = getattr(known, measure.key, None)
        return "" if number is None else f"{number:g}"
    setup, counted = SETUPS[setting.dataset], known.upload_bytes
    if (setup.rounds, setup.clients) != (setting.rounds, setting.clients) or counted is None:
        return ""
    chart = known.chart_bytes or counted
    differs = not 2 / 3 < chart / counted < 1.5
    return human_bytes(counted) + (f", its chart {human_bytes(chart)}" if differs else "")


def print_tables(results: Results, console: Console) -> None:
    """Print accuracy and bytes of each method, one table for each setting; without accuracy, the task's metrics."""
    for comparison in results.comparisons():
        _print(comparison, {"accuracy\n%": lambda c, label: ACCURACY.write(c.spread(label, "accuracy"))}, console)
    for comparison in Results(results.unscored).comparisons():
        metrics = sorted(name for name in comparison.rows if str(name).startswith("metric."))
        _print(comparison, {name.removeprefix("metric."): partial(_metric, name=name) for name in metrics}, console)


def _print(comparison: Comparison, first: dict[str, Callable[[Comparison, str], str]], console: Console) -> None:
    columns = dict(first)
    columns["loss"] = lambda c, label: _short(c.mean(label, "loss"))
    for name, measure in (("up", UP), ("down", DOWN), ("both", BOTH)):
        columns[name] = partial(_mean_bytes, measure=measure)
    if "fedavg" in comparison.labels:
        columns["of\nFedAvg"] = lambda c, label: f"1/{c.mean(label, 'times_less'):.1f}"
    columns["kept %"] = lambda c, label: f"{100 * c.mean(label, 'kept'):.1f}"
    words = max(len(word) for label in comparison.labels for word in label.split(" "))
    cells = {name: [write(comparison, label) for label in comparison.labels] for name, write in columns.items()}
    for dropped in ("kept %", "loss", "of\nFedAvg"):  # what is least needed goes first where it is narrow
        widths = [max(map(len, [*name.split("\n"), *texts])) for name, texts in cells.items()]
        if words + sum(widths) + _COLUMN_GAP * len(cells) <= console.width - 2:
            break
        cells.pop(dropped, None)
    caption = _CAPTION + (_KEPT_CAPTION if "kept %" in cells else "")
    table = Grid(title=comparison.subtitle, title_justify="left", caption=caption, caption_justify="left")
    table.box, table.pad_edge, table.collapse_padding = SIMPLE_HEAD, False, True
    table.add_column("method", min_width=words)
    for heading in cells:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in zip(comparison.labels, *cells.values(), strict=True):
        table.add_row(*row)
    console.print(table)
    if comparison.privacy:
        console.print(comparison.privacy)


def _mean_bytes(comparison: Comparison, label: str, measure: Measure) -> str:
    return human_bytes(comparison.mean(label, measure.key))


def _metric(comparison: Comparison, label: str, name: str) -> str:
    rows = comparison.rows
    return with_spread(Spread.of(rows.loc[rows["label"] == label, name]), 3)


def _short(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else _UNKNOWN


def to_latex(table: Table) -> str:
    """Return a booktabs table; ours, then the paper's in parentheses."""
    has_paper = any(cell.paper_text for row in table.rows for cell in row.cells)
    closing = "; the original paper's value in parentheses." if has_paper else "."
    titles = ["Method", *(_tex(measure.title) for measure in table.measures), "$n$"]
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
