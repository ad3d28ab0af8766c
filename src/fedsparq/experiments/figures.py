"""The figures of a bench: what every method buys for its bytes, and how it got there."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsparq.experiments import bars, curves
from fedsparq.experiments.frontier import crowded, frontier
from fedsparq.experiments.grouping import Bench, pareto, slug
from fedsparq.experiments.placing import Tag, around_points
from fedsparq.experiments.style import GRID, INK, MUTED, SURFACE, WIDTH, Look, bytes_axis, panel, styled
from fedsparq.experiments.units import percent

Looks = Mapping[str, Look]


@dataclass(frozen=True)
class Drawing:
    """A figure, the name of its files and of its place in the page, and what it shows in one sentence."""

    name: str
    caption: str
    figure: Figure


def draw_bench(bench: Bench, looks: Looks) -> Iterator[Drawing]:
    """Every figure the runs of this bench have something to show in."""
    at = bench.setting.heading
    with styled():
        name = f"{bench.slug}-accuracy"
        yield Drawing(name, f"Test accuracy over rounds, {at}", curves.measure_curves(bench, looks, "accuracy"))
        yield Drawing(f"{bench.slug}-loss", f"Test loss over rounds, {at}", curves.measure_curves(bench, looks, "loss"))
        caption = f"Upload per client over the run, {at}: bars as sent, ticks in the paper's accounting"
        yield Drawing(f"{bench.slug}-bytes", caption, bars.upload(bench, looks))
        if not bench.setting.iid:
            name = f"{bench.slug}-robustness"
            yield Drawing(name, f"Robustness scores, {at}", bars.robustness(bench, looks))
        sparse = [arm for arm in bench.arms if arm.spread("kept").mean < 0.999]
        if sparse:
            name = f"{bench.slug}-kept"
            yield Drawing(name, f"Share of coordinates sent over rounds, {at}", curves.kept(bench, sparse, looks))
        for arm in sparse:
            if curves.layers_differ(arm) and not crowded(bench):
                name = f"{bench.slug}-layers-{slug(arm.label)}"
                caption = f"Share of each layer that {arm.name} sends, {at}"
                yield Drawing(name, caption, curves.kept_layers(bench, arm, looks))
        if bench.arms[0].runs[0].class_counts is not None:
            name = f"{bench.slug}-partition"
            yield Drawing(name, f"Examples of each class at each client, {at}", bars.partition(bench))
        if bench.variants and bench.arm("fedsparq") is not None:
            name = f"{bench.slug}-variants"
            caption = f"FedSparQ's variants against its default, {at}"
            yield Drawing(name, caption, bars.variants(bench))


def answer(bench: Bench, looks: Looks) -> Figure:
    """Accuracy against bytes sent, every method of one bench, the undominated ones joined."""
    if crowded(bench):
        return frontier(bench)
    with styled():
        figure, axes = panel("Accuracy for bytes sent", bench.setting.subtitle, left=40, height=3.6)
        _draw_answer(axes, bench, looks)
        return figure


def answers(all_benches: Sequence[Bench], looks: Looks) -> Figure:
    """The same for all benches in one figure, for a paper; without those that need more room."""
    all_benches = [bench for bench in all_benches if not crowded(bench)]
    columns = min(2, len(all_benches))
    rows = math.ceil(len(all_benches) / columns)
    with styled():
        figure = Figure(figsize=(WIDTH * columns, 3.5 * rows), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, bench in zip(grid, all_benches, strict=False):
            axes.set_title(bench.setting.subtitle, loc="left", fontsize=8.5, color=INK.light)
            _draw_answer(axes, bench, looks, labels=False)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for axes, bench in zip(grid, all_benches, strict=False):
            around_points(axes, _tags(bench, looks), _staircase(axes, bench))
        for axes in grid[len(all_benches) :]:
            axes.set_visible(False)
        return figure


def _draw_answer(axes: Axes, bench: Bench, looks: Looks, labels: bool = True) -> None:
    front = pareto(bench.arms)
    spots = {arm.label: (arm.spread("upload_bytes"), arm.spread("accuracy")) for arm in bench.arms}
    axes.set_xscale("log")
    for arm in bench.arms:
        (x, y), look = spots[arm.label], looks[arm.label]
        axes.errorbar(
            x.mean, y.mean, xerr=x.std, yerr=y.std, fmt="none", ecolor=look.colour, elinewidth=1, alpha=0.6, zorder=2
        )
        axes.plot(
            x.mean,
            y.mean,
            marker=look.marker,
            markersize=7,
            color=look.colour,
            markerfacecolor=look.colour if arm in front else SURFACE.light,
            markeredgewidth=1.4,
            zorder=4 if arm in front else 3,
            label=arm.label,
        )
    xs, ys = zip(*((x.mean, y.mean) for x, y in spots.values()), strict=True)
    reach = max(max(ys) - min(ys), 0.5)
    low, high = (
        min(y.mean - (y.std or 0) for _, y in spots.values()),
        max(y.mean + (y.std or 0) for _, y in spots.values()),
    )
    axes.set_ylim(min(low, min(ys) - 0.16 * reach), max(high, max(ys) + 0.16 * reach))
    ratio = max(max(xs) / min(xs), 1.5)
    axes.set_xlim(min(xs) / ratio**0.16, max(xs) * ratio**0.16)
    _join_front(axes, bench)
    bytes_axis(axes)
    axes.grid(axis="y")
    axes.set_xlabel("upload per client over the run, as sent (log scale)", fontsize=8)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(percent)
    if labels:
        around_points(axes, _tags(bench, looks), _staircase(axes, bench))


def _tags(bench: Bench, looks: Looks) -> list[Tag]:
    front = pareto(bench.arms)
    return [
        Tag(a.short_name, a.spread("upload_bytes").mean, a.spread("accuracy").mean, looks[a.label].colour, a in front)
        for a in bench.arms
    ]


def _staircase(axes: Axes, bench: Bench) -> list[tuple[float, float]]:
    """The corners of the best accuracy that so many bytes can buy."""
    corners: list[tuple[float, float]] = []
    for arm in pareto(bench.arms):
        x, y = arm.spread("upload_bytes").mean, arm.spread("accuracy").mean
        corners += [(x, corners[-1][1]), (x, y)] if corners else [(x, y)]
    return [*corners, (axes.get_xlim()[1], corners[-1][1])]


def _join_front(axes: Axes, bench: Bench) -> None:
    xs, ys = zip(*_staircase(axes, bench), strict=True)
    axes.plot(xs, ys, color=MUTED.light, linewidth=0.8, zorder=1.5)
    axes.fill_between(xs, ys, axes.get_ylim()[0], color=GRID.light, alpha=0.45, linewidth=0, zorder=1)
