"""The look of every figure: one colour per method everywhere, ink that follows the page's light or dark theme.

Figures are drawn once, in the light colours. In the page each colour of the palette is swapped for a CSS variable,
so the same drawing is right on a light screen, on a dark one and on paper.
"""

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from fedsparq.errors import MissingExtraError
from fedsparq.experiments.units import tick_bytes

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
except ModuleNotFoundError as error:
    raise MissingExtraError("drawing figures needs matplotlib: pip install 'fedsparq[torch]'") from error

WIDTH = 5.0  # inches; close to a phone's width, two fit side by side on a laptop


@dataclass(frozen=True)
class Shade:
    """A colour on a light and on a dark page."""

    light: str
    dark: str


INK = Shade("#1f2328", "#e6e8eb")
MUTED = Shade("#667079", "#9aa4ae")
GRID = Shade("#e4e7ea", "#2f353c")
SURFACE = Shade("#fefefe", "#16191d")
# For colour-blind readers: no two neighbours differ by hue alone, every curve is labelled where it ends.
_KNOWN = {
    "fedsparq": Shade("#d1520a", "#ff8f4a"),
    "fedavg": Shade("#4a5058", "#c3c9d0"),
    "fedpaq": Shade("#0a6fb0", "#5fb0ee"),
    "float16": Shade("#0b8f6a", "#3fcfa3"),
    "random-10": Shade("#b4588f", "#e793c4"),
    "top-10": Shade("#a88400", "#e2bd3f"),
}
_OTHERS = (
    Shade("#35308f", "#9b95f2"),
    Shade("#35a2c9", "#7fd3ef"),
    Shade("#84254f", "#d9739f"),
    Shade("#7f8526", "#c3ca62"),
    Shade("#8a5a3a", "#cf9c78"),
    Shade("#3f9c8f", "#79d1c5"),
    Shade("#7b52ab", "#b897e0"),
    Shade("#c23b4b", "#f2808d"),
)
_MARKERS = "osD^vPX*<>hp"
_LINES = ("-", "--", ":", "-.")
CLASS_SHADES = (
    Shade("#332289", "#7a6fd6"),
    Shade("#89cdee", "#89cdef"),
    Shade("#45aa98", "#45aa97"),
    Shade("#117734", "#3d9e5e"),
    Shade("#99993a", "#b3b34f"),
    Shade("#ddcc78", "#ddcc76"),
    Shade("#cc6778", "#d97a8a"),
    Shade("#882256", "#b9508a"),
    Shade("#aa459a", "#c468b6"),
    Shade("#9aa0a6", "#7d848b"),
)


@dataclass(frozen=True)
class Look:
    """How a method appears in every figure."""

    shade: Shade
    marker: str
    line: str

    @property
    def colour(self) -> str:
        return self.shade.light


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """A look for each label: fixed for the paper's methods, in reading order for all others."""
    found: dict[str, Look] = {}
    others = 0
    for label in dict.fromkeys(labels):
        if label in _KNOWN:
            place = list(_KNOWN).index(label)
            found[label] = Look(_KNOWN[label], _MARKERS[place], "-")
        else:
            shade = _OTHERS[others % len(_OTHERS)]
            marker = _MARKERS[(len(_KNOWN) + others) % len(_MARKERS)]
            found[label] = Look(shade, marker, _LINES[(others // len(_OTHERS)) % len(_LINES)])
            others += 1
    return found


def _variables() -> Mapping[str, Shade]:
    named = {"ink": INK, "muted": MUTED, "grid": GRID, "surface": SURFACE}
    named |= {f"m-{name}": shade for name, shade in _KNOWN.items()}
    named |= {f"x{i}": shade for i, shade in enumerate(_OTHERS)}
    named |= {f"c{i}": shade for i, shade in enumerate(CLASS_SHADES)}
    return named


def css_variables(dark: bool) -> str:
    """The palette as CSS custom properties."""
    return " ".join(f"--{name}: {shade.dark if dark else shade.light};" for name, shade in _variables().items())


def styled(**more: str) -> AbstractContextManager[None]:
    """matplotlib's settings for our figures, as a context: nothing global is changed."""
    settings: dict[Any, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "text.color": INK.light,
        "text.parse_math": False,
        "axes.edgecolor": MUTED.light,
        "axes.labelcolor": MUTED.light,
        "axes.facecolor": SURFACE.light,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "grid.color": GRID.light,
        "grid.linewidth": 0.7,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "xtick.color": MUTED.light,
        "ytick.color": MUTED.light,
        "xtick.major.size": 3,
        "ytick.major.size": 0,
        "lines.solid_capstyle": "round",
        "figure.facecolor": SURFACE.light,
        "savefig.facecolor": SURFACE.light,
        "svg.fonttype": "none",
        "pdf.fonttype": 42,
    }
    return matplotlib.rc_context(settings | {name.replace("_", "."): value for name, value in more.items()})


def text_width(text: str, size: float = 8.5) -> float:
    """Width of a text in points, as the figures' font sets it."""
    width, _, _ = text_to_path.get_text_width_height_descent(
        text, FontProperties(family="DejaVu Sans", size=size), False
    )
    return float(width)


def panel(
    title: str, subtitle: str, *, left: float = 36, right: float = 12, bottom: float = 33, height: float = 3.3
) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, margins in points, its title and what it shows above it at the left edge."""
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    wide, high = WIDTH * 72, height * 72
    top = 46
    axes = figure.add_axes((left / wide, bottom / high, (wide - left - right) / wide, (high - top - bottom) / high))
    figure.text(1 / wide, 1 - 15 / high, title, fontsize=10.5, fontweight="bold", va="baseline")
    figure.text(1 / wide, 1 - 29 / high, subtitle, fontsize=_fitting(subtitle, wide - 2), color=MUTED.light)
    return figure, axes


def _fitting(text: str, width: float, size: float = 8.0) -> float:
    return max(5.5, size * min(1.0, width / text_width(text, size)))


def save(figure: Figure, folder: Path, name: str, formats: Iterable[str] = ("svg", "png", "pdf")) -> str:
    """Write the figure in every format asked for, byte for byte the same each time; returns the SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = svg(figure, name)
    for kind in formats:
        path = folder / f"{name}.{kind}"
        if kind == "svg":
            path.write_text(drawn, encoding="utf-8")
        else:
            metadata = {"CreationDate": None} if kind == "pdf" else {"Software": None}
            with styled():
                figure.savefig(path, format=kind, dpi=220, metadata=metadata)
    return drawn


def svg(figure: Figure, name: str) -> str:
    """The figure as an SVG document whose ids are its own, so that many fit in one page."""
    buffer = BytesIO()
    with styled(svg_hashsalt=name):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue().decode("utf-8")
    text = re.sub(r"""(\bid="|url\(#|href="#)""", rf"\g<1>{name}_", text)
    return text.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")


def inline(document: str, label: str) -> str:
    """An SVG document made part of a page: themed by CSS variables, named for screen readers, no fixed size."""
    body = document[document.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    opening, _, rest = body.partition(">")
    view_box = re.search(r'viewBox="[^"]+"', opening)
    for name, shade in _variables().items():
        rest = rest.replace(shade.light, f"var(--{name})")
    escaped = label.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'aria-label="{escaped}" {view_box.group(0) if view_box else ""}>{rest}'
    )


def bytes_axis(axes: Axes) -> None:
    """Ticks in kB, MB and GB on a logarithmic x axis."""
    low, high = axes.get_xlim()
    decades = math.log10(high / low)
    subs = (1.0,) if decades > 2.5 else (1.0, 3.0) if decades > 1.2 else (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(LogLocator(10, subs=subs))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_bytes(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
