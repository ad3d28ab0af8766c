"""Labels beside what they name, moved apart where they would overlap."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from fedsparq.experiments.style import MUTED, text_width

_SIZE = 8.5
_LINE = 10.5


@dataclass(frozen=True)
class Tag:
    """A label and the point, in data coordinates, that it belongs to."""

    text: str
    x: float
    y: float
    colour: str
    bold: bool = False


def at_line_ends(axes: Axes, tags: Sequence[Tag]) -> None:
    """Labels in a column right of the axes, in the order of the curves' ends, spread to one line each."""
    scale = 72 / axes.figure.dpi
    points = axes.transData.transform([(tag.x, tag.y) for tag in tags]) * scale
    order = sorted(range(len(tags)), key=lambda i: points[i][1])
    box = axes.get_window_extent()
    floor, ceiling = box.y0 * scale - 4, box.y1 * scale + 4
    heights = spread_apart([float(points[i][1]) for i in order], _LINE, floor, ceiling)
    crowded = any(abs(height - points[i][1]) > 1 for i, height in zip(order, heights, strict=True))
    for i, height in zip(order, heights, strict=True):
        moved = height - points[i][1]
        axes.annotate(
            tags[i].text,
            (tags[i].x, tags[i].y),
            xytext=(14 if crowded else 6, moved),
            textcoords="offset points",
            va="center_baseline",
            fontsize=_SIZE,
            color=tags[i].colour,
            fontweight="bold" if tags[i].bold else "normal",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": tags[i].colour,
                "lw": 0.6,
                "shrinkA": 1,
                "shrinkB": 1,
                "relpos": (0, 0.5),
            }
            if crowded
            else None,
        )


def spread_apart(places: Sequence[float], gap: float, floor: float, ceiling: float) -> list[float]:
    """Rising numbers moved as little as possible until neighbours are `gap` apart, then down below the ceiling.

    The floor gives way where there are more places than room.
    """
    blocks: list[tuple[float, int]] = []  # mean of (place - rank * gap), members
    for rank, place in enumerate(places):
        mean, size = place - rank * gap, 1
        while blocks and blocks[-1][0] > mean:
            before, members = blocks.pop()
            mean = (mean * size + before * members) / (size + members)
            size += members
        blocks.append((mean, size))
    last = len(places) - 1
    starts = [mean for mean, size in blocks for _ in range(size)]
    lifted = [max(start, floor) + rank * gap for rank, start in enumerate(starts)]
    return [min(place, ceiling - (last - rank) * gap) for rank, place in enumerate(lifted)]


def around_points(axes: Axes, tags: Sequence[Tag], avoid: Sequence[tuple[float, float]] = ()) -> None:
    """Labels near scattered points: each takes the place with the least overlap, with a thin line if it is far.

    `avoid` is a staircase, in data coordinates, that labels should not be struck through by.
    """
    scale = 72 / axes.figure.dpi
    box = axes.get_window_extent()
    frame = (box.x0 * scale, box.y0 * scale, box.x1 * scale, box.y1 * scale)
    points = [(float(x), float(y)) for x, y in axes.transData.transform([(tag.x, tag.y) for tag in tags]) * scale]
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in points]
    corners = [(float(x), float(y)) for x, y in axes.transData.transform(avoid) * scale] if avoid else []
    stairs = [
        (min(a[0], b[0]) - 1.5, min(a[1], b[1]) - 1.5, max(a[0], b[0]) + 1.5, max(a[1], b[1]) + 1.5)
        for a, b in itertools.pairwise(corners)
    ]
    # the most crowded points choose first
    crowd = [sum(abs(x - u) < 70 and abs(y - v) < 24 for u, v in points) for x, y in points]
    for i in sorted(range(len(tags)), key=lambda i: (-crowd[i], -points[i][1])):
        width, (x, y) = text_width(tags[i].text, _SIZE) * (1.12 if tags[i].bold else 1.0), points[i]
        own = taken[i]
        others = [t for t in taken if t is not own] + stairs
        best, place = float("inf"), (0.0, 0.0)
        for reach in (0, 8, 17, 27, 38, 50, 64):
            for dx, dy in _directions(width, reach):
                spot = (x + dx, y + dy - _LINE / 2, x + dx + width, y + dy + _LINE / 2)
                cost = 4 * sum(_overlap(spot, other) for other in others) + 40 * _outside(spot, frame) + reach * 1.5
                if cost < best:
                    best, place = cost, (dx, dy)
        dx, dy = place
        taken.append((x + dx, y + dy - _LINE / 2, x + dx + width, y + dy + _LINE / 2))
        far = abs(dy) > 12 or not -width - 12 < dx < 12
        axes.annotate(
            tags[i].text,
            (tags[i].x, tags[i].y),
            xytext=(dx, dy),
            textcoords="offset points",
            va="center",
            fontsize=_SIZE,
            color=tags[i].colour,
            fontweight="bold" if tags[i].bold else "normal",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": MUTED.light, "lw": 0.6, "shrinkA": 0, "shrinkB": 4}
            if far
            else None,
        )


_Box = tuple[float, float, float, float]


def _directions(width: float, reach: float) -> list[tuple[float, float]]:
    near = 8 + reach
    return [
        (near, 0),
        (-near - width, 0),
        (-width / 2, 11 + reach),
        (-width / 2, -11 - reach),
        (near * 0.7, 8 + reach * 0.7),
        (near * 0.7, -8 - reach * 0.7),
        (-near * 0.7 - width, 8 + reach * 0.7),
        (-near * 0.7 - width, -8 - reach * 0.7),
    ]


def _overlap(a: _Box, b: _Box) -> float:
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return wide * high if wide > 0 and high > 0 else 0.0


def _outside(box: _Box, frame: _Box) -> float:
    return (
        max(0.0, frame[0] - box[0]) + max(0.0, box[2] - frame[2])
        + max(0.0, frame[1] - box[1]) + max(0.0, box[3] - frame[3])
    )  # fmt: skip
