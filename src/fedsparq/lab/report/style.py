"""The look of every figure: one colour per method everywhere, ink that follows the page's light or dark theme.

Figures are drawn once, in the light colours. In the page each colour of the palette is swapped for a CSS variable,
so the same drawing is right on a light screen, on a dark one and on paper.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.resources import as_file, files
from typing import Any

from fedsparq.errors import MissingExtraError
from fedsparq.lab.report.looks import CLASS_SHADES, KNOWN, OTHERS, PAGE, Look, Shade
from fedsparq.lab.report.units import percent, tick_bytes
from fedsparq.lab.results.grouping import Arm

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
except ModuleNotFoundError as error:
    raise MissingExtraError("drawing figures needs matplotlib: pip install 'fedsparq[torch]'") from error

WIDTH = 5.0  # inches; close to a phone's width, two fit side by side on a laptop
INK, MUTED, GRID, SURFACE = (PAGE[name] for name in ("ink", "muted", "grid", "surface"))
PALETTE: Mapping[str, Shade] = (
    PAGE
    | {f"m-{name}": look.shade for name, look in KNOWN.items()}
    | {f"x{i}": shade for i, shade in enumerate(OTHERS)}
    | {f"c{i}": shade for i, shade in enumerate(CLASS_SHADES)}
)
"""Every colour by the name of its CSS variable."""
with as_file(files("fedsparq.lab.report") / "figures.mplstyle") as _path:
    _SETTINGS = matplotlib.rc_params_from_file(_path, use_default_template=False)


def styled(salt: str | None = None) -> AbstractContextManager[None]:
    """matplotlib's settings for our figures, as a context: nothing global is changed. `salt` makes an SVG's ids."""
    return matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": salt})


def text_width(text: str, size: float = 8.5) -> float:
    """Width of a text in points, as the figures' font sets it."""
    font = FontProperties(family="DejaVu Sans", size=size)
    return float(text_to_path.get_text_width_height_descent(text, font, False)[0])


def panel(
    title: str, subtitle: str, *, left: float = 36, right: float = 12, bottom: float = 33, height: float = 3.3
) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, margins in points, its title and what it shows above it at the left edge."""
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    wide, high, top = WIDTH * 72, height * 72, 46
    axes = figure.add_axes((left / wide, bottom / high, (wide - left - right) / wide, (high - top - bottom) / high))
    figure.text(1 / wide, 1 - 15 / high, title, fontsize=10.5, fontweight="bold", va="baseline")
    figure.text(1 / wide, 1 - 29 / high, subtitle, fontsize=fitting(subtitle, 8.0, wide - 2), color=MUTED.light)
    return figure, axes


def spread_shown(arms: Sequence[Arm]) -> str:
    """What bands and error bars are, or that there are none."""
    seeds = sorted({len(arm.runs) for arm in arms})
    many = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    return f"mean ± deviation over {many} seeds" if seeds[-1] > 1 else "one seed: the spread is not known"


def explain_spread(axes: Axes, arms: Sequence[Arm]) -> None:
    """Say it in the figure."""
    axes.set_title(spread_shown(arms), loc="right", fontsize=7, color=MUTED.light, pad=2)


def fitting(text: str, size: float, width: float) -> float:
    """The font size at which a text is no wider than so many points."""
    return max(5.5, size * min(1.0, width / text_width(text, size)))


def draw_line(axes: Axes, x: Any, y: Any, look: Look, label: str, ours: bool, thin: float = 1.4, **more: Any) -> None:
    """A method's line in its colour and dash; ours is thicker and above all others."""
    axes.plot(
        x,
        y,
        color=look.colour,
        linestyle=look.line,
        linewidth=2.2 if ours else thin,
        label=label,
        zorder=4 if ours else 3,
        **more,
    )


def log_ticks(axis: Axis, write: Callable[[float, float], str], subs: tuple[float, ...] = (1.0,)) -> None:
    """Labelled ticks at each power of ten times `subs`."""
    axis.set_major_locator(LogLocator(10, subs=subs))
    axis.set_major_formatter(write)
    axis.set_minor_formatter(NullFormatter())


def accuracy_for_bytes(axes: Axes) -> None:
    """The axes of the figures that answer the question: bytes sent, on a log scale, and accuracy."""
    low, high = axes.get_xlim()
    decades = math.log10(high / low)
    log_ticks(axes.xaxis, tick_bytes, (1.0,) if decades > 2.5 else (1.0, 3.0) if decades > 1.2 else (1.0, 2.0, 5.0))
    axes.grid(axis="y")
    axes.set_xlabel("upload per client over the run, as sent (log scale)", fontsize=8)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(percent)


def over_rounds(axes: Axes, rounds: int) -> None:
    """The axes of curves."""
    axes.set_xlim(1, max(2, rounds))
    round_ticks(axes)
    axes.grid(axis="y")


def round_ticks(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("round", fontsize=8)
