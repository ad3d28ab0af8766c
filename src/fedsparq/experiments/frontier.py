"""Accuracy against bytes where methods were run at many settings: each method a line through its settings."""

import re
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsparq.experiments import style
from fedsparq.experiments.grouping import Arm, Bench, method_name
from fedsparq.experiments.placing import Tag, around_points
from fedsparq.experiments.units import percent

_MANY = 12
_NUMBER = re.compile(r" \w+=[-+.e\d]+(?= |$)")
_DEPTH = 2.0
"""Points of accuracy below the best that are shown; what is worse stands as a triangle at the bottom."""


def crowded(bench: Bench) -> bool:
    """Whether there are too many settings to name each, but several belong to one method."""
    return len(bench.arms) > _MANY and len(families(bench.arms)) < len(bench.arms)


def families(arms: Sequence[Arm]) -> dict[str, list[Arm]]:
    """The arms that differ in numbers alone, by bytes sent; under their common label."""
    found: dict[str, list[Arm]] = {}
    for arm in sorted(arms, key=lambda arm: arm.spread("upload_bytes").mean):
        found.setdefault(_NUMBER.sub("", arm.label), []).append(arm)
    return found


def frontier(bench: Bench) -> Figure:
    """Every setting of every method; those of one method are joined and share a colour and a name."""
    reached = [arm.spread("accuracy").mean for arm in bench.arms]
    best, worst = max(reached), min(reached)
    floor = max(best - _DEPTH, worst - 0.2)
    below = f" · triangles: below {floor:.1f} %" if worst < floor else ""
    with style.styled():
        figure, axes = style.panel("Accuracy for bytes sent", bench.setting.subtitle + below, left=40, height=4.8)
        axes.set_xscale("log")
        looks, tags = style.looks(sorted(families(bench.arms))), []
        for method, arms in families(bench.arms).items():
            look = looks[method]
            spots = [(arm.spread("upload_bytes").mean, arm.spread("accuracy")) for arm in arms]
            shown = [(x, y) for x, y in spots if y.mean >= floor]
            axes.plot(
                [x for x, _ in shown],
                [y.mean for _, y in shown],
                color=look.colour,
                linewidth=2.2 if method == "fedsparq-adaptive" else 1.1,
                marker=look.marker,
                markersize=6,
                label=method,
                zorder=4 if method == "fedsparq-adaptive" else 3,
            )
            for x, y in shown:
                axes.errorbar(x, y.mean, yerr=y.std, fmt="none", ecolor=look.colour, elinewidth=1, alpha=0.5, zorder=2)
            sunk = [x for x, y in spots if y.mean < floor]
            axes.plot(sunk, [floor] * len(sunk), "v", color=look.colour, markersize=5, clip_on=False, zorder=3)
            x, height = max(((x, y.mean) for x, y in shown), key=lambda spot: spot[1], default=(spots[0][0], floor))
            tags.append(Tag(method_name(method), x, height, look.colour, method == "fedsparq-adaptive"))
        axes.set_ylim(floor, best + 0.5)
        sent = [arm.spread("upload_bytes").mean for arm in bench.arms]
        axes.set_xlim(min(sent) / 1.6, max(sent) * 2.0)
        style.bytes_axis(axes)
        axes.grid(axis="y")
        axes.set_xlabel("upload per client over the run, as sent (log scale)", fontsize=8)
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.yaxis.set_major_formatter(percent)
        around_points(axes, tags)
        return figure
