"""One method's settings among all others: accuracy against bytes, as a small SVG that follows the page's colours."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

WIDTH, HEIGHT = 500, 250
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 12, 40
_DEPTH = 3
"""Others further below the best than so many times the middle one are left out."""

_TICKS = (
    *((1e4, "10 kB"), (3e4, "30 kB"), (1e5, "100 kB"), (3e5, "300 kB")),
    *((1e6, "1 MB"), (3e6, "3 MB"), (1e7, "10 MB")),
)

Point = tuple[float, float]


def frontier_picture(others: Sequence[Point], ours: Sequence[Point], name: str) -> tuple[str, int]:
    """The picture, and the accuracy below which others are left out.

    Points are (bytes, accuracy in percent); ours are joined in the order of their bytes.
    """
    ours = sorted(ours)
    best, middle = max(point[1] for point in others), statistics.median(point[1] for point in others)
    least = math.floor(best - _DEPTH * (best - middle))
    others = [point for point in others if point[1] >= least]
    uploads, accuracies = zip(*others, *ours, strict=True)
    first, last = math.floor(math.log10(min(uploads)) * 2) / 2, math.ceil(math.log10(max(uploads)) * 4) / 4
    lowest, highest = math.floor(min(accuracies)), math.ceil(max(accuracies))

    def x(upload: float) -> float:
        return LEFT + (math.log10(upload) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(accuracy: float) -> float:
        return HEIGHT - BOTTOM - (accuracy - lowest) / (highest - lowest) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg class="frontier" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-size="12" fill="currentColor" '
        f'aria-label="Accuracy against upload: {name} among all methods">'
    ]
    step = next(step for step in (1, 2, 5, 10, 20) if (highest - lowest) / step <= 8)
    for accuracy in range(-(-lowest // step) * step, highest + 1, step):
        parts.append(f'<path d="M{LEFT} {y(accuracy):.1f}H{WIDTH - RIGHT}" stroke="currentColor" opacity=".12"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(accuracy) + 4:.1f}" text-anchor="end">{accuracy} %</text>')
    for upload, label in _TICKS:
        if not first <= math.log10(upload) <= last:
            continue
        parts.append(f'<text x="{x(upload):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{label}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 4}" text-anchor="middle">upload per client over the run</text>'
    )
    parts.extend(f'<circle cx="{x(u):.1f}" cy="{y(a):.1f}" r="3.5" opacity=".3"/>' for u, a in others)
    line = "L".join(f"{x(u):.1f} {y(a):.1f}" for u, a in ours)
    parts.append(f'<path d="M{line}" fill="none" stroke="var(--md-accent-fg-color)" stroke-width="2"/>')
    mark = '<circle cx="{:.1f}" cy="{:.1f}" r="6" fill="var(--md-accent-fg-color)"/>'
    parts.extend(mark.format(x(u), y(a)) for u, a in ours)
    return "".join([*parts, "</svg>"]), least
