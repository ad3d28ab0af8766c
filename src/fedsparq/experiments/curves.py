"""Curves over rounds: accuracy, loss, and the share of coordinates sent."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from fedsparq.experiments.grouping import Arm, Bench
from fedsparq.experiments.placing import Tag, at_line_ends
from fedsparq.experiments.results import Round
from fedsparq.experiments.style import MUTED, Look, panel, text_width
from fedsparq.experiments.units import percent

_MANY_LAYERS = 8
Looks = Mapping[str, Look]


def measure_curves(bench: Bench, looks: Looks, measure: str) -> Figure:
    """A measure over rounds: a line for the mean, a band for the spread over seeds."""
    title = {"accuracy": "Accuracy over rounds", "loss": "Loss over rounds"}[measure]
    return _lines(
        bench, bench.arms, looks, title, lambda r: float(getattr(r, measure)), in_percent=measure == "accuracy"
    )


def kept(bench: Bench, sparse: Sequence[Arm], looks: Looks) -> Figure:
    """The share of coordinates each sparse method sends, over rounds."""
    figure = _lines(bench, sparse, looks, "Coordinates sent", lambda r: 100 * r.kept, in_percent=True, zero=True)
    figure.axes[0].set_ylim(bottom=0)
    return figure


def _lines(
    bench: Bench,
    arms: Sequence[Arm],
    looks: Looks,
    title: str,
    value: Callable[[Round], float],
    in_percent: bool,
    zero: bool = False,
) -> Figure:
    right = 16 + max(text_width(arm.short_name) * (1.12 if arm.label == "fedsparq" else 1) for arm in arms)
    figure, axes = panel(title, bench.setting.subtitle, right=right, height=max(3.1, 0.9 + 0.16 * len(arms)))
    ends, everything = [], []
    for arm in arms:
        look, spreads = looks[arm.label], arm.curve(value)
        rounds = np.arange(1, len(spreads) + 1)
        mean = np.array([s.mean for s in spreads])
        everything.append(mean)
        axes.plot(
            rounds,
            mean,
            color=look.colour,
            linestyle=look.line,
            linewidth=2.2 if arm.label == "fedsparq" else 1.4,
            marker=look.marker if len(rounds) == 1 else None,
            label=arm.label,
            zorder=4 if arm.label == "fedsparq" else 3,
        )
        if spreads[0].std is not None:
            std = np.array([s.std or 0.0 for s in spreads])
            axes.fill_between(rounds, mean - std, mean + std, color=look.colour, alpha=0.16, linewidth=0, zorder=2)
        finite = np.flatnonzero(np.isfinite(mean))
        if finite.size:
            last = int(finite[-1])
            ends.append(Tag(arm.short_name, last + 1.0, float(mean[last]), look.colour, arm.label == "fedsparq"))
    _choose_scale(axes, np.concatenate(everything), in_percent, zero)
    axes.set_xlim(1, max(2, bench.setting.rounds))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("round", fontsize=8)
    axes.grid(axis="y")
    at_line_ends(axes, ends)
    return figure


def _choose_scale(axes: Axes, values: NDArray[np.float64], in_percent: bool, zero: bool) -> None:
    finite = values[np.isfinite(values)]
    if not in_percent and finite.size and finite.min() > 0 and finite.max() / finite.min() > 8:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
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
    if len(names) > _MANY_LAYERS:
        return _layer_map(bench, arm, names)
    right = 16 + max(text_width(name) for name in (*names, "whole model"))
    figure, axes = panel(f"Layers, {arm.name}", bench.setting.subtitle, right=right, height=3.1)
    whole = [100 * s.mean for s in arm.curve(lambda r: r.kept)]
    rounds = np.arange(1, len(whole) + 1)
    ends = []
    for name, line in zip(names, ("-", "--", "-.", ":") * 2, strict=False):
        share = [100 * s.mean for s in arm.curve(lambda r, name=name: r.kept_layers.get(name, math.nan))]  # type: ignore[misc]
        axes.plot(rounds, share, color=MUTED.light, linestyle=line, linewidth=1.2, label=name)
        ends.append(Tag(name, float(rounds[-1]), share[-1], MUTED.light))
    axes.plot(rounds, whole, color=looks[arm.label].colour, linewidth=2.2, label="whole model", zorder=4)
    ends.append(Tag("whole model", float(rounds[-1]), whole[-1], looks[arm.label].colour))
    axes.set_ylim(bottom=0)
    axes.set_xlim(1, max(2, len(whole)))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_formatter(percent)
    axes.set_xlabel("round", fontsize=8)
    axes.grid(axis="y")
    at_line_ends(axes, [tag for tag in ends if math.isfinite(tag.y)])
    return figure


def _layer_map(bench: Bench, arm: Arm, names: Sequence[str]) -> Figure:
    shares = [[s.mean for s in arm.curve(lambda r, name=name: r.kept_layers.get(name, math.nan))] for name in names]  # type: ignore[misc]
    size = 7.0 if len(names) <= 30 else 4.6
    left = 12 + max(text_width(name, size) for name in names)
    height = min(6.4, 1.5 + len(names) * (size + 2) / 72)
    figure, axes = panel(f"Layers, {arm.name}", bench.setting.subtitle, left=left, right=52, height=height)
    top = max(0.01, float(np.nanmax(shares)))
    image = axes.imshow(
        100 * np.array(shares),
        aspect="auto",
        interpolation="nearest",
        cmap="cividis",
        vmin=0,
        vmax=100 * top,
        extent=(0.5, len(shares[0]) + 0.5, len(names) - 0.5, -0.5),
    )
    axes.set_yticks(range(len(names)), names, fontsize=size)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("round", fontsize=8)
    box = axes.get_position()
    bar = figure.add_axes((box.x1 + 0.02, box.y0, 0.022, box.height))
    figure.colorbar(image, cax=bar, format=percent).outline.set_visible(False)
    bar.tick_params(labelsize=7.5, length=0)
    return figure
