"""The bar charts: times less, robustness, classes per client, variants."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsparq.lab.report.looks import CLASS_SHADES, Looks
from fedsparq.lab.report.style import GRID, INK, MUTED, SURFACE, WIDTH, panel, text_width
from fedsparq.lab.report.units import tick_bytes, times_less
from fedsparq.lab.results.grouping import Arm, Bench, reference
from fedsparq.lab.results.records import ClassCounts
from fedsparq.lab.results.units import human_bytes


def upload(bench: Bench, looks: Looks) -> Figure:
    """How many times less than the reference each method sends: bars on a linear axis, each with its own numbers."""
    arms, plain = sorted(bench.arms, key=lambda arm: -arm.sent.mean), reference(bench.arms)
    figure, axes = _rows(bench, f"Times less upload than {plain.name}", [arm.short_name for arm in arms])
    times = [plain.sent.mean / arm.sent.mean for arm in arms]
    notes = [f"{times_less(ratio)}, {human_bytes(arm.sent.mean)}" for arm, ratio in zip(arms, times, strict=True)]
    for row, (arm, ratio, note) in enumerate(zip(arms, times, notes, strict=True)):
        axes.barh(row, ratio, height=0.62, color=looks[arm.label].colour, label=arm.label)
        _note(axes, note, ratio, row, distance=5, size=8.5)
    wide = axes.get_position().width * WIDTH * 72
    axes.set_xlim(0, max(times) * wide / max(wide - max(map(text_width, notes)) - 10, wide / 4))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.set_xlabel("upload per client over the run, as sent; linear scale", fontsize=8)
    axes.grid(axis="x")
    return figure


def robustness(bench: Bench, looks: Looks) -> Figure:
    """The paper's two scores side by side: accuracy minus loss, accuracy over loss."""
    arms = list(reversed(bench.arms))
    figure, first = _rows(bench, "Robustness under non-IID data", [arm.short_name for arm in arms])
    second = _halve(figure, first)
    for axes, measure, formula in (
        (first, "robust1", "Robust₁ = accuracy − loss"),
        (second, "robust2", "Robust₂ = accuracy / loss"),
    ):
        values = [(row, arm, arm.spread(measure)) for row, arm in enumerate(arms)]
        finite = [(row, arm, value) for row, arm, value in values if math.isfinite(value.mean)]
        for row, arm, value in finite:
            colour = looks[arm.label].colour
            axes.barh(row, value.mean, height=0.62, color=colour, xerr=value.std, ecolor=INK.light, label=arm.label)
            end = (value.std or 0) + value.mean if value.mean > 0 else 0
            _note(axes, f"{value.mean:.{1 if abs(value.mean) < 1000 else 0}f}", end, row, distance=4, size=8)
        ends = [(value.mean, value.mean + (value.std or 0.0)) for _, _, value in finite] or [(0.0, 1.0)]
        axes.set_xlim(min(0, *(low for low, _ in ends)), max(0.0, *(high for _, high in ends)) * 1.38 or 1)
        axes.set_xlabel(formula, fontsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.grid(axis="x")
        axes.set_ylim(first.get_ylim())
    second.set_yticks([])
    second.spines["left"].set_visible(False)
    return figure


def partition(bench: Bench, known: ClassCounts) -> Figure:
    """Examples of each class at each client, for the first seed."""
    clients = len(known.counts)
    each = 0.34 if clients <= 12 else max(0.06, 4.0 / clients)
    key = _key(known.classes, WIDTH * 72 - 60)
    title = f"Classes at each client, seed {bench.arms[0].runs[0].seed}"
    bottom, height = 34 + 13 * len(key), 1.2 + each * clients + 0.18 * len(key)
    figure, axes = panel(title, bench.setting.subtitle, left=52, right=20, bottom=bottom, height=height)
    for client, row in enumerate(known.counts):
        start = 0
        for number, count in enumerate(row):
            colour = _class_colour(number)
            axes.barh(client, count, left=start, height=0.8, color=colour, edgecolor=SURFACE.light, linewidth=0.8)
            start += count
    axes.set_xlim(0, (max(map(sum, known.counts)) or 1) * 1.01)
    axes.set_ylim(clients - 0.45, -0.55)
    if clients <= 24:
        axes.set_yticks(range(clients), [f"client {client}" for client in range(clients)], fontsize=8)
    else:
        axes.set_ylabel("client", fontsize=8)
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("training examples", fontsize=8)
    axes.grid(axis="x")
    _draw_key(figure, key)
    return figure


def variants(bench: Bench, default: Arm) -> Figure:
    """Accuracy and bytes of each variant of FedSparQ; the default is the line to compare with."""
    arms = [*reversed(bench.variants), default]
    figure, first = _rows(bench, "FedSparQ and its variants", [arm.options for arm in arms])
    second = _halve(figure, first)
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
    second.xaxis.set_major_formatter(tick_bytes)
    second.set_yticks(range(len(arms)), [""] * len(arms))
    second.spines["left"].set_visible(False)
    return figure


def _rows(bench: Bench, title: str, names: Sequence[str], bottom: float = 38) -> tuple[Figure, Axes]:
    """A panel with one row for each name."""
    left = 14 + max(map(text_width, names))
    figure, axes = panel(title, bench.setting.subtitle, left=left, bottom=bottom, height=1.35 + 0.27 * len(names))
    axes.set_yticks(range(len(names)), names, fontsize=8.5, color=INK.light)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.spines["left"].set_visible(False)
    return figure, axes


def _halve(figure: Figure, axes: Axes) -> Axes:
    """Make room for other axes to the right, and return those."""
    box, gap = axes.get_position(), 0.07
    half = (box.width - gap) / 2
    axes.set_position((box.x0, box.y0, half, box.height))
    return figure.add_axes((box.x0 + half + gap, box.y0, half, box.height))


def _note(axes: Axes, text: str, x: float, row: int, distance: float, size: float) -> None:
    axes.annotate(text, (x, row), xytext=(distance, 0), textcoords="offset points", va="center", fontsize=size)


def _class_colour(number: int) -> str:
    return CLASS_SHADES[number % len(CLASS_SHADES)].light


def _key(classes: Sequence[str], width: float) -> list[list[tuple[float, int, str]]]:
    """Lines of (x, class, name): as many names as fit a width in each."""
    lines: list[list[tuple[float, int, str]]] = [[]]
    used = 0.0
    for number, name in enumerate(classes[: 3 * len(CLASS_SHADES)]):
        need = 18 + text_width(name, 7.5)
        if used + need > width and lines[-1]:
            lines.append([])
            used = 0.0
        lines[-1].append((52.0 + used, number, name))
        used += need
    return lines


def _draw_key(figure: Figure, lines: Sequence[Sequence[tuple[float, int, str]]]) -> None:
    wide, high = figure.get_size_inches() * 72
    for line_number, line in enumerate(reversed(lines)):
        y = 8.0 + 13 * line_number
        for x, number, name in line:
            figure.text(x / wide, y / high, "■", fontsize=8, color=_class_colour(number))
            figure.text((x + 9) / wide, y / high, name, fontsize=7.5, color=MUTED.light)
