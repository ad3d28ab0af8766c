"""Accuracy and loss against bytes sent: the figures that answer the question."""

import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from fedsparq.lab.report.labels import Tag, around_points
from fedsparq.lab.report.looks import Looks
from fedsparq.lab.report.style import (
    GRID,
    MUTED,
    SURFACE,
    WIDTH,
    accuracy_for_bytes,
    draw_line,
    explain_spread,
    fitting,
    log_ticks,
    panel,
    spread_shown,
    styled,
)
from fedsparq.lab.report.units import percent, tick_bytes
from fedsparq.lab.results.grouping import Arm, Bench, Spread, method_name, pareto, reference
from fedsparq.lab.results.verdict import judge

_MANY = 12
_FEATURED = 5
_COLUMNS = 4
_NUMBER = re.compile(r" \w+=[-+.e\d]+(?= |$)")
_BESIDE = 1.5
"""How far from the best is shown, in distances of the middle setting; what is worse is a triangle at the edge."""


def answer(bench: Bench, looks: Looks) -> Figure:
    """Every method of one bench, the undominated ones joined; small multiples if there are many settings."""
    if crowded(bench):
        return frontier(bench, looks)
    with styled():
        figure, axes = panel("Accuracy for bytes sent", bench.setting.subtitle, left=40, height=3.6)
        explain_spread(axes, bench.arms)
        draw_methods(axes, bench, looks)
        name_methods(axes, bench, looks)
        return figure


def draw_methods(axes: Axes, bench: Bench, looks: Looks) -> None:
    """Marks with error bars, and the staircase below which nobody need stand."""
    front = pareto(bench.arms)
    axes.set_xscale("log")
    for arm in bench.arms:
        x, y, look = arm.sent, arm.accuracy, looks[arm.label]
        axes.errorbar(
            x.mean, y.mean, xerr=x.std, yerr=y.std, fmt="none", ecolor=look.colour, elinewidth=1, alpha=0.6, zorder=2
        )
        filling, layer = (look.colour, 4) if arm in front else (SURFACE.light, 3)
        (point,) = axes.plot(x.mean, y.mean, marker=look.marker, color=look.colour, zorder=layer, label=arm.label)
        point.set(markersize=7, markerfacecolor=filling, markeredgewidth=1.4)
    reached = [arm.accuracy for arm in bench.arms]
    low, high = min(y.mean for y in reached), max(y.mean for y in reached)
    room = 0.16 * max(high - low, 0.5)
    bottom, top = min(y.mean - (y.std or 0) for y in reached), max(y.mean + (y.std or 0) for y in reached)
    axes.set_ylim(min(bottom, low - room), max(top, high + room))
    least, most = min(arm.sent.mean for arm in bench.arms), max(arm.sent.mean for arm in bench.arms)
    ratio = max(most / least, 1.5)
    axes.set_xlim(least / ratio**0.16, most * ratio**0.16)
    xs, ys = zip(*_staircase(axes, bench), strict=True)
    axes.plot(xs, ys, color=MUTED.light, linewidth=0.8, zorder=1.5)
    axes.fill_between(xs, ys, axes.get_ylim()[0], color=GRID.light, alpha=0.45, linewidth=0, zorder=1)
    accuracy_for_bytes(axes)


def name_methods(axes: Axes, bench: Bench, looks: Looks) -> None:
    """Labels beside the marks; the axes must have their final place."""
    front = pareto(bench.arms)
    tags = [
        Tag(arm.short_name, arm.sent.mean, arm.accuracy.mean, looks[arm.label].colour, arm in front)
        for arm in bench.arms
    ]
    around_points(axes, tags, [_staircase(axes, bench), *_error_bars(bench)])


def _error_bars(bench: Bench) -> list[list[tuple[float, float]]]:
    spots = [(arm.sent, arm.accuracy) for arm in bench.arms]
    upright = [[(x.mean, y.mean - (y.std or 0)), (x.mean, y.mean + (y.std or 0))] for x, y in spots]
    return upright + [[(x.mean - (x.std or 0), y.mean), (x.mean + (x.std or 0), y.mean)] for x, y in spots]


def _staircase(axes: Axes, bench: Bench) -> list[tuple[float, float]]:
    """The corners of the best accuracy that so many bytes can buy."""
    corners: list[tuple[float, float]] = []
    for arm in pareto(bench.arms):
        x, y = arm.sent.mean, arm.accuracy.mean
        corners += [(x, corners[-1][1]), (x, y)] if corners else [(x, y)]
    return [*corners, (axes.get_xlim()[1], corners[-1][1])]


def crowded(bench: Bench) -> bool:
    """Whether there are too many settings to name each, but several belong to one method."""
    return len(bench.arms) > _MANY and len(families(bench.arms)) < len(bench.arms)


def families(arms: Sequence[Arm]) -> dict[str, list[Arm]]:
    """The arms that differ in numbers alone, by bytes sent; under their common label."""
    found: dict[str, list[Arm]] = {}
    for arm in sorted(arms, key=lambda arm: arm.sent.mean):
        found.setdefault(_NUMBER.sub("", arm.label), []).append(arm)
    return found


def featured(bench: Bench) -> list[Arm]:
    """The methods to draw curves of: all, or where there are many those that answer the question."""
    if len(bench.arms) <= _MANY:
        return list(bench.arms)
    answering = (*pareto(bench.arms)[-_FEATURED:], *judge(bench.arms).least[:1], reference(bench.arms))
    chosen = {"fedsparq", *(arm.label for arm in answering)}
    return [arm for arm in bench.arms if arm.label in chosen]


@dataclass(frozen=True)
class _Axis:
    """What is drawn against bytes: which way is better, how far from the best at least, how ticks are written."""

    title: str
    value: Callable[[Arm], Spread]
    better: int
    least: Callable[[float], float]
    ticks: Callable[[float, float], str]
    unit: str = ""

    def edge(self, arms: Sequence[Arm]) -> tuple[float, float]:
        """The best mean, and the one from which on a method is too bad to be shown at its place."""
        means = [self.better * self.value(arm).mean for arm in arms]
        means = sorted(filter(math.isfinite, means), reverse=True)
        best, least = self.better * means[0], self.least(self.better * means[0])
        depth = max(_BESIDE * (means[0] - statistics.median(means)), least)
        return best, self.better * max(means[0] - depth, means[-1] - least / 10)

    def beyond(self, arm: Arm, edge: float) -> bool:
        return not self.better * self.value(arm).mean >= self.better * edge


_ACCURACY = _Axis("Accuracy", lambda arm: arm.accuracy, 1, lambda _: 2.0, percent, " %")
_LOSS = _Axis("Loss", lambda arm: arm.spread("loss"), -1, lambda best: best / 4, lambda value, _: f"{value:.3g}")


def frontier(bench: Bench, looks: Looks, axis: _Axis = _ACCURACY) -> Figure:
    """Small multiples, one for each method: its settings joined, those of all other methods in grey behind."""
    groups = families(bench.arms)
    best, edge = axis.edge(bench.arms)
    side = "below" if axis.better > 0 else "above"
    sunk = any(axis.beyond(arm, edge) for arm in bench.arms)
    beyond = f" · triangles: {side} {edge:.3g}{axis.unit}" if sunk else ""
    rows = math.ceil(len(groups) / _COLUMNS)
    wide, high = WIDTH * 1.7 * 72, 75 + 100.0 * rows
    with styled():
        figure = Figure(figsize=(wide / 72, high / 72))
        FigureCanvasAgg(figure)
        figure.text(4 / wide, 1 - 15 / high, f"{axis.title} for bytes sent", fontsize=10.5, fontweight="bold")
        subtitle = f"{bench.setting.subtitle} · {spread_shown(bench.arms)}{beyond}"
        figure.text(4 / wide, 1 - 29 / high, subtitle, fontsize=fitting(subtitle, 8.0, wide - 8), color=MUTED.light)
        grid = figure.subplots(rows, _COLUMNS, squeeze=False, sharex=True, sharey=True).ravel()
        figure.subplots_adjust(
            left=40 / wide, right=1 - 8 / wide, top=1 - 52 / high, bottom=32 / high, hspace=0.34, wspace=0.08
        )
        amounts = [arm.sent.mean for arm in bench.arms]
        for axes, (method, arms) in zip(grid, groups.items(), strict=False):
            axes.set_xscale("log")
            values = [axis.value(arm).mean for arm in bench.arms]
            axes.plot(amounts, values, "o", color=GRID.light, markersize=3.5, zorder=1)
            _draw_family(axes, arms, method, looks, axis, edge)
            name = method_name(method)
            size = fitting(name, 8.5, wide / _COLUMNS - 24)
            axes.set_title(name, loc="left", fontsize=size, color=looks[arms[-1].label].colour, pad=3)
        grid[0].set_xlim(min(amounts) / 1.6, max(amounts) * 1.6)
        grid[0].set_ylim(*sorted((edge, best + 0.15 * (best - edge))))
        for axes in grid[len(groups) :]:
            axes.set_visible(False)
        figure.text(0.5, 5 / high, "upload per client over the run, as sent (log scale)", fontsize=8, ha="center")
        return figure


def loss_frontier(bench: Bench, looks: Looks) -> Figure:
    """The same of the loss, which tells methods apart where accuracy does not."""
    return frontier(bench, looks, _LOSS)


def _draw_family(axes: Axes, arms: Sequence[Arm], method: str, looks: Looks, axis: _Axis, edge: float) -> None:
    """The settings of one method; those beyond the edge are triangles on it."""
    look = looks[method] if method in looks else looks[arms[-1].label]
    shown = [arm for arm in arms if not axis.beyond(arm, edge)]
    sunk = [arm.sent.mean for arm in arms if axis.beyond(arm, edge)]
    draw_line(axes, [a.sent.mean for a in shown], [axis.value(a).mean for a in shown], look, method, ours=False)
    for arm in shown:
        where: dict[str, Any] = {
            "color": look.colour,
            "marker": looks[arm.label].marker,
            "markersize": 5.5,
            "zorder": 4,
        }
        value = axis.value(arm)
        axes.errorbar(arm.sent.mean, value.mean, yerr=value.std, elinewidth=0.9, **where)
    triangle = "v" if axis.better > 0 else "^"
    axes.plot(sunk, [edge] * len(sunk), triangle, color=look.colour, markersize=5, clip_on=False, zorder=3)
    log_ticks(axes.xaxis, tick_bytes)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=7)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(axis.ticks)
    axes.grid(axis="y")
