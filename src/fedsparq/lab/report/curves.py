"""Curves over rounds: accuracy, loss, and the share of coordinates sent."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedsparq.lab.report.frontier import featured
from fedsparq.lab.report.labels import Tag, at_line_ends
from fedsparq.lab.report.looks import Looks
from fedsparq.lab.report.style import (
    MUTED,
    draw_line,
    explain_spread,
    log_ticks,
    over_rounds,
    panel,
    round_ticks,
    text_width,
)
from fedsparq.lab.report.units import percent
from fedsparq.lab.results.grouping import Arm, Bench
from fedsparq.lab.results.records import Round

_MANY_LAYERS = 8


def accuracy(bench: Bench, looks: Looks) -> Figure:
    """A line for the mean, a band for the spread over seeds."""
    return _lines(bench, featured(bench), looks, "Accuracy over rounds", lambda r: r.accuracy)


def loss(bench: Bench, looks: Looks) -> Figure:
    """The same for the loss."""
    return _lines(bench, featured(bench), looks, "Loss over rounds", lambda r: r.loss, in_percent=False)


def kept(bench: Bench, sparse: Sequence[Arm], looks: Looks) -> Figure:
    """The share of coordinates each sparse method sends."""
    figure = _lines(bench, sparse, looks, "Coordinates sent", lambda r: 100 * r.kept, zero=True)
    figure.axes[0].set_ylim(bottom=0)
    return figure


def _lines(
    bench: Bench,
    arms: Sequence[Arm],
    looks: Looks,
    title: str,
    value: Callable[[Round], float],
    in_percent: bool = True,
    zero: bool = False,
) -> Figure:
    right = 16 + max(text_width(arm.short_name) * (1.12 if arm.label == "fedsparq" else 1) for arm in arms)
    figure, axes = panel(title, bench.setting.subtitle, right=right, height=max(3.1, 0.9 + 0.16 * len(arms)))
    explain_spread(axes, arms)
    ends, everything = [], []
    for arm in arms:
        look, ours, spreads = looks[arm.label], arm.label == "fedsparq", arm.curve(value)
        rounds = np.arange(1, len(spreads) + 1)
        mean = np.array([s.mean for s in spreads])
        everything.append(mean)
        every = max(1, len(rounds) // 5)
        marks: dict[str, Any] = {
            "marker": look.marker,
            "markersize": 4.5,
            "markevery": (arms.index(arm) % every, every),
        }
        draw_line(axes, rounds, mean, look, arm.label, ours, **marks)
        if spreads[0].std is not None:
            std = np.array([s.std or 0.0 for s in spreads])
            axes.fill_between(rounds, mean - std, mean + std, color=look.colour, alpha=0.16, linewidth=0, zorder=2)
        finite = np.flatnonzero(np.isfinite(mean))
        if finite.size:
            last = int(finite[-1])
            ends.append(Tag(arm.short_name, last + 1.0, float(mean[last]), look.colour, ours))
    _choose_scale(axes, np.concatenate(everything), in_percent, zero)
    over_rounds(axes, bench.setting.rounds)
    at_line_ends(axes, ends)
    return figure


def _choose_scale(axes: Axes, values: NDArray[np.float64], in_percent: bool, zero: bool) -> None:
    finite = values[np.isfinite(values)]
    if not in_percent and finite.size and finite.min() > 0 and finite.max() / finite.min() > 8:
        axes.set_yscale("log")
        log_ticks(axes.yaxis, lambda value, _: f"{value:g}", (1.0, 2.0, 5.0))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(6))
    if in_percent:
        axes.yaxis.set_major_formatter(percent)
    if finite.size and not zero:
        axes.margins(y=0.05)


def layers_differ(arm: Arm) -> bool:
    shares = {round(share, 3) for r in arm.runs[0].rounds for share in r.kept_layers.values()}
    return len(shares) > 1


def kept_layers(bench: Bench, arm: Arm, looks: Looks) -> Figure:
    """Each layer's share over rounds: labelled lines for a few layers, a map of colours for many."""
    names = list(arm.runs[0].rounds[0].kept_layers)
    shares = {name: _percent_kept(arm, name) for name in names}
    if len(names) > _MANY_LAYERS:
        return _layer_map(bench, arm, shares)
    right = 16 + max(text_width(name) for name in (*names, "whole model"))
    figure, axes = panel(f"Layers, {arm.name}", bench.setting.subtitle, right=right, height=3.1)
    whole = [100 * s.mean for s in arm.curve(lambda r: r.kept)]
    rounds = np.arange(1, len(whole) + 1)
    ends = []
    for (name, share), line in zip(shares.items(), ("-", "--", "-.", ":") * 2, strict=False):
        axes.plot(rounds, share, color=MUTED.light, linestyle=line, linewidth=1.2, label=name)
        ends.append(Tag(name, float(rounds[-1]), share[-1], MUTED.light))
    draw_line(axes, rounds, whole, looks[arm.label], "whole model", ours=True)
    ends.append(Tag("whole model", float(rounds[-1]), whole[-1], looks[arm.label].colour))
    axes.set_ylim(bottom=0)
    over_rounds(axes, len(whole))
    axes.yaxis.set_major_formatter(percent)
    at_line_ends(axes, [tag for tag in ends if math.isfinite(tag.y)])
    return figure


def _percent_kept(arm: Arm, layer: str) -> list[float]:
    return [100 * s.mean for s in arm.curve(lambda r: r.kept_layers.get(layer, math.nan))]


def _layer_map(bench: Bench, arm: Arm, shares: dict[str, list[float]]) -> Figure:
    size = 7.0 if len(shares) <= 30 else 4.6
    left = 12 + max(text_width(name, size) for name in shares)
    height = min(6.4, 1.5 + len(shares) * (size + 2) / 72)
    figure, axes = panel(f"Layers, {arm.name}", bench.setting.subtitle, left=left, right=52, height=height)
    table = np.array(list(shares.values()))
    most, extent = max(1.0, float(np.nanmax(table))), (0.5, table.shape[1] + 0.5, len(shares) - 0.5, -0.5)
    image = axes.imshow(table, aspect="auto", interpolation="nearest", cmap="cividis", vmin=0, vmax=most, extent=extent)
    axes.set_yticks(range(len(shares)), list(shares), fontsize=size)
    round_ticks(axes)
    box = axes.get_position()
    bar = figure.add_axes((box.x1 + 0.02, box.y0, 0.022, box.height))
    figure.colorbar(image, cax=bar, format=percent).outline.set_visible(False)
    bar.tick_params(labelsize=7.5, length=0)
    return figure
