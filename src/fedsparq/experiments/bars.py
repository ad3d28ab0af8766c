"""The bar charts: bytes, robustness, classes per client, variants."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fedsparq.experiments.grouping import Arm, Bench
from fedsparq.experiments.style import (
    CLASS_SHADES,
    GRID,
    INK,
    MUTED,
    SURFACE,
    WIDTH,
    Look,
    panel,
    text_width,
)
from fedsparq.experiments.units import human_bytes, tick_bytes

Looks = Mapping[str, Look]


def upload(bench: Bench, looks: Looks) -> Figure:
    """Bytes per method on a log scale: the bar is what was sent, the tick what the paper's formula counts."""
    arms = sorted(bench.arms, key=lambda a: a.spread("upload_bytes").mean)
    figure, axes = _rows(bench, arms, "Upload per client", bottom=44)
    sent = [arm.spread("upload_bytes") for arm in arms]
    counted = [max(1.0, arm.spread("upload_bytes_paper").mean) for arm in arms]
    low = min(s.mean for s in sent)
    high = max(*(s.mean for s in sent), *counted)
    floor = 10 ** math.floor(math.log10(min(low, *counted)) - 0.15)
    axes.set_xscale("log")
    axes.set_xlim(floor, high * (high / floor) ** 0.22)
    for row, (arm, amount, formula) in enumerate(zip(arms, sent, counted, strict=True)):
        axes.barh(row, amount.mean - floor, left=floor, height=0.62, color=looks[arm.label].colour, label=arm.label)
        axes.plot([formula] * 2, [row - 0.42, row + 0.42], color=INK.light, linewidth=1.6, solid_capstyle="butt")
        end = max(amount.mean, formula)
        axes.annotate(
            human_bytes(amount.mean), (end, row), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5
        )
    axes.xaxis.set_major_locator(LogLocator(10))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_bytes(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("bar: as sent · tick: paper accounting · log scale", fontsize=8)
    axes.grid(axis="x")
    return figure


def robustness(bench: Bench, looks: Looks) -> Figure:
    """The paper's two scores side by side: accuracy minus loss, accuracy over loss."""
    arms = list(reversed(bench.arms))
    figure, first = _rows(bench, arms, "Robustness under non-IID data")
    first, second = _halve(figure, first)
    for axes, measure, formula in (
        (first, "robust1", "Robust₁ = accuracy − loss"),
        (second, "robust2", "Robust₂ = accuracy / loss"),
    ):
        values = [arm.spread(measure) for arm in arms]
        finite = [v.mean for v in values if math.isfinite(v.mean)] or [1.0]
        for row, (arm, value) in enumerate(zip(arms, values, strict=True)):
            if not math.isfinite(value.mean):
                continue
            colour = looks[arm.label].colour
            axes.barh(row, value.mean, height=0.62, color=colour, xerr=value.std, ecolor=INK.light, label=arm.label)
            digits = 1 if abs(value.mean) < 1000 else 0
            text = f"{value.mean:.{digits}f}"
            offset = (value.std or 0) + value.mean if value.mean > 0 else 0
            axes.annotate(text, (offset, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set_xlim(min(0, *finite), max(0.0, *finite) * 1.38 or 1)
        axes.set_xlabel(formula, fontsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.grid(axis="x")
        axes.set_ylim(first.get_ylim())
    second.set_yticks([])
    second.spines["left"].set_visible(False)
    return figure


def partition(bench: Bench) -> Figure:
    """Examples of each class at each client, for the first seed."""
    run = bench.arms[0].runs[0]
    if run.class_counts is None:
        raise ValueError("this run has no partition.json")
    classes, counts = run.class_counts.classes, run.class_counts.counts
    clients = len(counts)
    each = 0.34 if clients <= 12 else max(0.06, 4.0 / clients)
    key_lines = _key_lines(classes, WIDTH * 72 - 60)
    figure, axes = panel(
        f"Classes at each client, seed {run.seed}",
        bench.setting.subtitle,
        left=52,
        right=20,
        bottom=34 + 13 * len(key_lines),
        height=1.2 + each * clients + 0.18 * len(key_lines),
    )
    largest = max(sum(row) for row in counts) or 1
    for client, row in enumerate(counts):
        start = 0
        for place, count in enumerate(row):
            shade = CLASS_SHADES[place % len(CLASS_SHADES)]
            axes.barh(client, count, left=start, height=0.8, color=shade.light, edgecolor=SURFACE.light, linewidth=0.8)
            start += count
    axes.set_xlim(0, largest * 1.01)
    axes.set_ylim(clients - 0.45, -0.55)
    if clients <= 24:
        axes.set_yticks(range(clients), [f"client {client}" for client in range(clients)], fontsize=8)
    else:
        axes.set_ylabel("client", fontsize=8)
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("training examples", fontsize=8)
    axes.grid(axis="x")
    _draw_key(figure, key_lines)
    return figure


def _key_lines(classes: Sequence[str], width: float) -> list[list[tuple[int, str]]]:
    lines: list[list[tuple[int, str]]] = [[]]
    used = 0.0
    for place, name in enumerate(classes[: 3 * len(CLASS_SHADES)]):
        need = 18 + text_width(name, 7.5)
        if used + need > width and lines[-1]:
            lines.append([])
            used = 0.0
        lines[-1].append((place, name))
        used += need
    return lines


def _draw_key(figure: Figure, lines: Sequence[Sequence[tuple[int, str]]]) -> None:
    wide, high = figure.get_size_inches() * 72
    for number, line in enumerate(reversed(lines)):
        x, y = 52.0, 8.0 + 13 * number
        for place, name in line:
            shade = CLASS_SHADES[place % len(CLASS_SHADES)]
            figure.text(x / wide, y / high, "■", fontsize=8, color=shade.light)
            figure.text((x + 9) / wide, y / high, name, fontsize=7.5, color=MUTED.light)
            x += 18 + text_width(name, 7.5)


def variants(bench: Bench) -> Figure:
    """Accuracy and bytes of each variant of FedSparQ; the default is the line to compare with."""
    default = bench.arm("fedsparq")
    if default is None:
        raise ValueError("variants are drawn against plain fedsparq, which is not among these runs")
    arms = [*reversed(bench.variants), default]
    names = [_options(arm) for arm in arms]
    figure, first = _rows(bench, arms, "FedSparQ and its variants", names)
    first, second = _halve(figure, first)
    for axes, measure, text in ((first, "accuracy", "accuracy, %"), (second, "upload_bytes", "upload, as sent")):
        axes.axvline(default.spread(measure).mean, color=MUTED.light, linewidth=0.8, linestyle=(0, (3, 3)))
        for row, arm in enumerate(arms):
            value = arm.spread(measure)
            axes.errorbar(value.mean, row, xerr=value.std, fmt="none", ecolor=MUTED.light, elinewidth=1.2)
            colour = "#d1520a" if arm is default else INK.light
            axes.plot(value.mean, row, "o", markersize=5.5, color=colour, label=arm.label)
        axes.set_xlabel(text, fontsize=8)
        axes.grid(axis="both", color=GRID.light)
        axes.set_ylim(first.get_ylim())
        axes.margins(x=0.12)
        axes.xaxis.set_major_locator(MaxNLocator(3))
    second.set_xlim(left=0)
    second.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_bytes(value)))
    second.set_yticks(range(len(arms)), [""] * len(arms))
    second.spines["left"].set_visible(False)
    return figure


def _halve(figure: Figure, axes: Axes) -> tuple[Axes, Axes]:
    """Two pairs of axes in the place of one."""
    box = axes.get_position()
    gap = 0.07
    half = (box.width - gap) / 2
    axes.set_position((box.x0, box.y0, half, box.height))
    return axes, figure.add_axes((box.x0 + half + gap, box.y0, half, box.height))


def _options(arm: Arm) -> str:
    return arm.label.partition(" ")[2] or "default"


def _rows(
    bench: Bench, arms: Sequence[Arm], title: str, names: Sequence[str] | None = None, bottom: float = 38
) -> tuple[Figure, Axes]:
    """A panel with one named row for each arm."""
    names = names or [arm.short_name for arm in arms]
    left = 14 + max(text_width(name) for name in names)
    figure, axes = panel(title, bench.setting.subtitle, left=left, bottom=bottom, height=1.35 + 0.27 * len(arms))
    axes.set_yticks(range(len(arms)), names, fontsize=8.5, color=INK.light)
    axes.set_ylim(-0.6, len(arms) - 0.4)
    axes.spines["left"].set_visible(False)
    return figure, axes
