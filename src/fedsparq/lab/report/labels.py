"""Labels beside what they name, moved apart where they would overlap."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from fedsparq.lab.report.style import MUTED, text_width

_SIZE = 8.5
_LINE = 10.5
_Point = tuple[float, float]
_Box = tuple[float, float, float, float]


class Tag(NamedTuple):
    """A label and the point, in data coordinates, that it belongs to."""

    text: str
    x: float
    y: float
    colour: str
    bold: bool = False


def at_line_ends(axes: Axes, tags: Sequence[Tag]) -> None:
    """Labels in a column right of the axes, in the order of the curves' ends, spread to one line each."""
    ends = sorted(zip(_in_points(axes, [(tag.x, tag.y) for tag in tags]), tags, strict=True), key=lambda end: end[0][1])
    _, floor, _, ceiling = _frame(axes)
    heights = [point[1] for point, _ in ends]
    spread = spread_apart(heights, _LINE, floor - 4, ceiling + 4)
    moved = [new - old for new, old in zip(spread, heights, strict=True)]
    crowded = any(abs(distance) > 1 for distance in moved)
    for distance, (_, tag) in zip(moved, ends, strict=True):
        line = {"color": tag.colour, "shrinkA": 1, "shrinkB": 1, "relpos": (0, 0.5)} if crowded else None
        _annotate(axes, tag, (14 if crowded else 6, distance), "center_baseline", line)


def spread_apart(heights: Sequence[float], gap: float, floor: float, ceiling: float) -> list[float]:
    """Rising numbers moved as little as possible until neighbours are `gap` apart, then down below the ceiling.

    The floor gives way where there are more of them than fit.
    """
    blocks: list[tuple[float, int]] = []  # mean of (height - rank * gap), members
    for rank, height in enumerate(heights):
        mean, size = height - rank * gap, 1
        while blocks and blocks[-1][0] > mean:
            before, members = blocks.pop()
            mean = (mean * size + before * members) / (size + members)
            size += members
        blocks.append((mean, size))
    last = len(heights) - 1
    starts = [mean for mean, size in blocks for _ in range(size)]
    lifted = [max(start, floor) + rank * gap for rank, start in enumerate(starts)]
    return [min(height, ceiling - (last - rank) * gap) for rank, height in enumerate(lifted)]


def around_points(axes: Axes, tags: Sequence[Tag], avoid: Sequence[Sequence[_Point]] = ()) -> None:
    """Labels near scattered points: each stands where it overlaps least, with a thin line if that is far.

    `avoid` are lines of upright and level parts, in data coordinates, that labels should not be struck through by.
    """
    frame, points = _frame(axes), _in_points(axes, [(tag.x, tag.y) for tag in tags])
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in points]
    strokes = [
        (min(a[0], b[0]) - 1.5, min(a[1], b[1]) - 1.5, max(a[0], b[0]) + 1.5, max(a[1], b[1]) + 1.5)
        for line in avoid
        for a, b in itertools.pairwise(_in_points(axes, line))
    ]
    # the most crowded points choose first
    crowd = [sum(abs(x - u) < 70 and abs(y - v) < 24 for u, v in points) for x, y in points]
    for i in sorted(range(len(tags)), key=lambda i: (-crowd[i], -points[i][1])):
        width, (x, y) = text_width(tags[i].text, _SIZE) * (1.12 if tags[i].bold else 1.0), points[i]
        others = [*taken[:i], *taken[i + 1 :], *strokes]
        best, offset, chosen = float("inf"), (0.0, 0.0), taken[i]
        for reach in (0, 8, 17, 27, 38, 50, 64):
            for dx, dy in _directions(width, reach):
                box = (x + dx, y + dy - _LINE / 2, x + dx + width, y + dy + _LINE / 2)
                cost = 4 * sum(_overlap(box, other) for other in others) + 40 * _outside(box, frame) + reach * 1.5
                if cost < best:
                    best, offset, chosen = cost, (dx, dy), box
        taken.append(chosen)
        far = abs(offset[1]) > 12 or not -width - 12 < offset[0] < 12
        _annotate(axes, tags[i], offset, "center", {"color": MUTED.light, "shrinkA": 0, "shrinkB": 4} if far else None)


def _annotate(axes: Axes, tag: Tag, offset: _Point, align: str, line: Mapping[str, Any] | None) -> None:
    axes.annotate(
        tag.text,
        (tag.x, tag.y),
        xytext=offset,
        textcoords="offset points",
        va=align,
        fontsize=_SIZE,
        color=tag.colour,
        fontweight="bold" if tag.bold else "normal",
        annotation_clip=False,
        arrowprops={"arrowstyle": "-", "lw": 0.6, **line} if line else None,
    )


def _in_points(axes: Axes, spots: Sequence[_Point]) -> list[_Point]:
    """Data coordinates in points of the figure."""
    if not spots:
        return []
    return [(float(x), float(y)) for x, y in axes.transData.transform(spots) * (72 / axes.figure.dpi)]


def _frame(axes: Axes) -> _Box:
    box, scale = axes.get_window_extent(), 72 / axes.figure.dpi
    return box.x0 * scale, box.y0 * scale, box.x1 * scale, box.y1 * scale


def _directions(width: float, reach: float) -> list[_Point]:
    near, aslant = 8 + reach, 8 + reach * 0.7
    sides: list[_Point] = [(near, 0), (-near - width, 0), (-width / 2, 11 + reach), (-width / 2, -11 - reach)]
    return sides + [(dx, dy) for dx in (near * 0.7, -near * 0.7 - width) for dy in (aslant, -aslant)]


def _overlap(a: _Box, b: _Box) -> float:
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return wide * high if wide > 0 and high > 0 else 0.0


def _outside(box: _Box, frame: _Box) -> float:
    return sum(max(0.0, frame[i] - box[i]) + max(0.0, box[i + 2] - frame[i + 2]) for i in (0, 1))
