"""Figures for papers, drawn with matplotlib: five kinds, each with one panel per setting and one legend."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsparq.errors import MissingExtraError, OptionError
from fedsparq.lab.names import human_bytes, method_name
from fedsparq.lab.report.document import Report, featured
from fedsparq.lab.report.palette import LINES, MARKERS, PAGE, Look, looks
from fedsparq.lab.report.tables import times_less, to_latex
from fedsparq.lab.results import Comparison

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
except ModuleNotFoundError as error:
    raise MissingExtraError("drawing figures needs matplotlib: pip install 'fedsparq[lab]'") from error

FORMATS = ("svg", "pdf", "png")
_WIDTH, _HEIGHT, _MAX_COLUMNS, _MAX_NAMES = 4.6, 3.2, 3, 8
_INK, _MUTED, _GRID = (PAGE[name].light for name in ("ink", "muted", "grid"))
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": _INK,
    "text.parse_math": False,
    "axes.edgecolor": _MUTED,
    "axes.labelcolor": _MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "grid.color": _GRID,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
_Looks = Mapping[str, Look]
_Draw = Callable[[Axes, Comparison, _Looks], None]


def write_figures(report: Report, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write every figure in each format, every table as LaTeX and all rounds as CSV; return the files."""
    unknown = [kind for kind in formats if kind not in FORMATS]
    if unknown or not formats:
        raise OptionError(f"figures are written as {', '.join(FORMATS)}, not as {', '.join(unknown) or 'nothing'}")
    folder.mkdir(parents=True, exist_ok=True)
    comparisons = [section.comparison for section in report.sections]
    found = looks(label for comparison in comparisons for label in comparison.labels)
    written = []
    for name, (draw, fits) in _KINDS.items():
        fitting = [comparison for comparison in comparisons if fits(comparison)]
        if not fitting:
            continue
        with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
            figure = _panels(fitting, draw, found)
            for kind in formats:
                dates: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
                path = folder / f"{name}.{kind}"
                figure.savefig(path, format=kind, dpi=220, metadata=dates)
                written.append(path)
    tables = [table for s in report.sections for table in (s.results, s.variants, s.attacks) if table is not None]
    texts = {f"{table.name}.tex": to_latex(table) for table in tables}
    for name, text in (texts | {"rounds.csv": report.results.rounds().to_csv(index=False)}).items():
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    return written


def _panels(comparisons: Sequence[Comparison], draw: _Draw, look: _Looks) -> Figure:
    """Return a figure with one panel per setting, and a legend of all methods below them."""
    columns = min(len(comparisons), _MAX_COLUMNS)
    rows = -(-len(comparisons) // columns)
    figure = Figure(figsize=(_WIDTH * columns, _HEIGHT * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    handles: dict[str, Any] = {}
    for number, comparison in enumerate(comparisons):
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.set_title(comparison.subtitle)
        draw(axes, comparison, look)
        handles |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    if len(handles) > 1:
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), 5))
    return figure


def draw_answer(axes: Axes, comparison: Comparison, look: _Looks) -> None:
    """Draw final accuracy for bytes sent; the methods that no other beats are filled and joined."""
    front = comparison.pareto()
    axes.set_xscale("log")
    by_bytes = sorted(comparison.main, key=lambda label: comparison.mean(label, "upload_bytes"))
    for number, label in enumerate(by_bytes):
        x, y, own = comparison.spread(label, "upload_bytes"), comparison.spread(label, "accuracy"), look[label]
        axes.errorbar(
            x.mean,
            y.mean,
            xerr=_known(x.std),
            yerr=_known(y.std),
            color=own.shade.light,
            marker=MARKERS[own.mark],
            markerfacecolor=own.shade.light if label in front else "white",
            elinewidth=1,
            linestyle="none",
            label=method_name(label),
        )
        if len(comparison.main) <= _MAX_NAMES:
            axes.annotate(
                method_name(label),
                (x.mean, y.mean),
                (5, 5 if number % 2 else -11),
                textcoords="offset points",
                fontsize=7.5,
            )
    xs, ys = ([comparison.mean(label, key) for label in front] for key in ("upload_bytes", "accuracy"))
    axes.step(xs, ys, where="post", color=_MUTED, linewidth=0.8, zorder=1)
    axes.margins(0.12)
    _bytes(axes)
    axes.set_ylabel("test accuracy, %")
    axes.set_xlabel("upload per client over the run (log scale)")


def draw_savings(axes: Axes, comparison: Comparison, look: _Looks) -> None:
    """Draw how many times less than the reference each method sends, with its bytes."""
    labels = sorted(comparison.main, key=lambda label: comparison.mean(label, "times_less"))
    times = [comparison.mean(label, "times_less") for label in labels]
    for row, (label, ratio) in enumerate(zip(labels, times, strict=True)):
        axes.barh(row, ratio, height=0.66, color=look[label].shade.light)
        note = f"{times_less(ratio)}, {human_bytes(comparison.mean(label, 'upload_bytes'))}"
        axes.annotate(note, (ratio, row), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(labels)), [method_name(label) for label in labels], color=_INK)
    axes.set_xlim(0, max(times) * 1.5)
    axes.set_xlabel(f"times less upload than {method_name(comparison.reference)} (linear)")
    axes.grid(axis="x")


def draw_accuracy(axes: Axes, comparison: Comparison, look: _Looks) -> None:
    """Draw test accuracy over rounds."""
    _curves(axes, comparison, look, "accuracy", "round")
    axes.set_ylabel("test accuracy, %")


def draw_loss(axes: Axes, comparison: Comparison, look: _Looks) -> None:
    """Draw test loss over rounds, on a log scale where it spans a lot."""
    _curves(axes, comparison, look, "loss", "round")
    means = [spread.mean for label in featured(comparison) for spread in comparison.curve(label, "loss")]
    means = [mean for mean in means if math.isfinite(mean)]
    if means and min(means) > 0 and max(means) / min(means) > 8:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("test loss")


def draw_spending(axes: Axes, comparison: Comparison, look: _Looks) -> None:
    """Draw test accuracy over the bytes that a client has sent so far."""
    axes.set_xscale("log")
    _curves(axes, comparison, look, "accuracy", "sent")
    _bytes(axes)
    axes.set_ylabel("test accuracy, %")


def _curves(axes: Axes, comparison: Comparison, look: _Looks, measure: str, against: str) -> None:
    for label in featured(comparison):
        own, curve = look[label], comparison.curve(label, measure)
        sent = [spread.mean for spread in comparison.curve(label, "sent")]
        x = sent if against == "sent" else list(range(1, len(curve) + 1))
        mean = [spread.mean for spread in curve]
        axes.plot(
            x,
            mean,
            color=own.shade.light,
            linestyle=LINES[own.dash],
            marker=MARKERS[own.mark],
            markersize=4,
            markevery=max(1, len(mean) // 6),
            label=method_name(label),
        )
        low, high = ([s.mean + sign * _known(s.std) for s in curve] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=own.shade.light, alpha=0.15, linewidth=0)
    axes.set_xlabel("round" if against == "round" else "upload per client so far (log scale)")
    if against == "round":
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.grid(axis="y")


def _bytes(axes: Axes) -> None:
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0,) if high / low > 300 else (1.0, 3.0)))
    axes.xaxis.set_major_formatter(lambda count, _: human_bytes(count).replace(".00", ""))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y")


def _known(std: float) -> float:
    return 0.0 if math.isnan(std) else std


def _several(comparison: Comparison) -> bool:
    return len(comparison.main) > 1


def _has_rounds(comparison: Comparison) -> bool:
    return len(comparison.played) > 0


_KINDS: Mapping[str, tuple[_Draw, Callable[[Comparison], bool]]] = {
    "answer": (draw_answer, _several),
    "savings": (draw_savings, _several),
    "accuracy": (draw_accuracy, _has_rounds),
    "loss": (draw_loss, _has_rounds),
    "accuracy-over-bytes": (draw_spending, _has_rounds),
}
