"""Figures about several benches at once, a panel for each: for a paper, and for a page of reading."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from fedsparq.lab.report.frontier import draw_methods, name_methods
from fedsparq.lab.report.looks import Looks
from fedsparq.lab.report.style import INK, WIDTH, draw_line, fitting, log_ticks, spread_shown, styled
from fedsparq.lab.report.units import percent, tick_bytes, times_less
from fedsparq.lab.results.grouping import Bench, reference

_LONG = 36
"""A name of so many characters takes a third of the width in a legend, not a quarter."""


def answers(benches: Sequence[Bench], looks: Looks) -> Figure:
    """Final accuracy against bytes sent."""
    return _panels(benches, 3.4, lambda axes, bench: draw_methods(axes, bench, looks), looks, name_methods)


def savings(benches: Sequence[Bench], looks: Looks) -> Figure:
    """How many times less each method sends, on linear axes."""

    def draw(axes: Axes, bench: Bench) -> None:
        arms, plain = sorted(bench.arms, key=lambda arm: -arm.sent.mean), reference(bench.arms)
        times = [plain.sent.mean / arm.sent.mean for arm in arms]
        axes.barh(range(len(arms)), times, height=0.62, color=[looks[arm.label].colour for arm in arms])
        axes.set_yticks(range(len(arms)), [arm.short_name for arm in arms], fontsize=8, color=INK.light)
        for row, ratio in enumerate(times):
            text = times_less(ratio)
            axes.annotate(text, (ratio, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set_xlim(0, max(times) * 1.18)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter("{x:g}x")
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")

    most = max(len(bench.arms) for bench in benches)
    return _panels(benches, 0.9 + 0.24 * most, draw, looks)


def spending(benches: Sequence[Bench], looks: Looks) -> Figure:
    """Accuracy after each round against what a client has sent by then."""

    def draw(axes: Axes, bench: Bench) -> None:
        axes.set_xscale("log")
        for arm in bench.arms:
            mean = [spread.mean for spread in arm.curve(lambda r: r.accuracy)]
            marks: dict[str, Any] = {
                "marker": looks[arm.label].marker,
                "markersize": 4.5,
                "markevery": max(1, len(mean) // 4),
            }
            draw_line(axes, arm.sent_so_far(), mean, looks[arm.label], arm.name, arm.label == "fedsparq", **marks)
        log_ticks(axes.xaxis, tick_bytes)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(percent)
        axes.set_ylim(bottom=min(arm.accuracy.mean for arm in bench.arms) - 5)
        axes.set_xlabel("upload per client so far (log scale)", fontsize=8)
        axes.grid(axis="y")

    figure = _panels(benches, 2.7, draw, looks, below=0.5)
    named = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    with styled():
        place: dict[str, Any] = {
            "loc": "lower left",
            "ncols": min(4 if max(map(len, named)) < _LONG else 3, len(named)),
            "frameon": False,
            "fontsize": 8,
            "handlelength": 3.4,
        }
        figure.legend(named.values(), named.keys(), **place)
    return figure


def _left(column: Sequence[Axes]) -> float:
    """Where the labels of the y axes begin."""
    boxes = (axes.yaxis.get_tightbbox() for axes in column)
    return min(float(box.x0) for box in boxes if box)


def _panels(
    benches: Sequence[Bench],
    height: float,
    draw: Callable[[Axes, Bench], None],
    looks: Looks,
    name: Callable[[Axes, Bench, Looks], None] | None = None,
    below: float = 0.0,
) -> Figure:
    """Two panels side by side, as many rows as it takes; inches of room `below`.

    `name` puts labels when all has its final place. Titles begin where the labels of the y axis do.
    """
    columns = min(2, len(benches))
    rows = math.ceil(len(benches) / columns)
    with styled():
        high = height * rows + below
        figure = Figure(
            figsize=(WIDTH * columns, high), layout=ConstrainedLayoutEngine(rect=(0, below / high, 1, 1 - below / high))
        )
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        titles = []
        for axes, bench in zip(grid, benches, strict=False):
            draw(axes, bench)
            title = bench.setting.subtitle + (f"\n{spread_shown(bench.arms)}" if name else "")
            size = fitting(bench.setting.subtitle, 8.5, WIDTH * 72 - 30)
            titles.append(axes.set_title(title, loc="left", fontsize=size, color=INK.light))
        for axes in grid[len(benches) :]:
            axes.set_visible(False)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        shown = grid[: len(benches)]
        for number, (axes, bench) in enumerate(zip(shown, benches, strict=True)):
            titles[number].set_x((_left(list(shown[number % columns :: columns])) - axes.bbox.x0) / axes.bbox.width)
            if name:
                name(axes, bench, looks)
        return figure
