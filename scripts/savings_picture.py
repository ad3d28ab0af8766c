"""The picture at the top of the README: the accuracy each method reached, against what a client sent and received.

`python scripts/savings_picture.py runs/quickstart` writes docs/figures/savings.svg from the runs that `make run` made.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from fedsparq.lab.results import Results

OUT = Path(__file__).parents[1] / "docs" / "figures" / "savings.svg"
LABELS = {
    "fedsparq-adaptive": (0, 16, "center"),
    "fedpaq": (-14, 5, "right"),
    "fedsparq": (-18, -19, "right"),
    "top-10": (-14, -36, "right"),
    "random-10": (-16, -6, "right"),
    "float16": (-4, -40, "left"),
    "fedavg": (24, 17, "right"),
}
"""Where each name stands beside its point: points to the right, points up, which side of the text."""
OURS = {"fedsparq-adaptive": "#007a6e", "fedsparq": "#c2410c"}
OTHERS, TEXT = "#7c8594", "#4b5563"
STYLE = {"font.size": 18, "svg.fonttype": "none", "svg.hashsalt": "fedsparq", "font.family": "sans-serif"}


def draw(folder: Path) -> Figure:
    """The runs below a folder, FedAvg's and the adaptive method's among them."""
    runs = {run.label: run for run in Results.read([folder]).runs}
    figure = Figure(figsize=(9, 4.6), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    for label, run in runs.items():
        sent, accuracy = run.upload_bytes + run.download_bytes, run.accuracy
        colour, ours = OURS.get(label, OTHERS), label in OURS
        axes.plot(sent, accuracy, "o", ms=13 if ours else 9, color=colour, zorder=3)
        right, up, side = LABELS.get(label, (0, 14, "center"))
        weight = "bold" if ours else "normal"
        words = {"textcoords": "offset points", "ha": side, "color": colour if ours else TEXT, "weight": weight}
        axes.annotate(f"{label}, {size(sent)}", (sent, accuracy), xytext=(right, up), **words)
    most, least = (runs[name].upload_bytes + runs[name].download_bytes for name in ("fedavg", "fedsparq-adaptive"))
    arrow = {"arrowstyle": "->", "color": OURS["fedsparq-adaptive"], "lw": 2}
    axes.annotate("", (least, 97.4), xytext=(most, 97.4), arrowprops=arrow)
    told = {"ha": "center", "color": OURS["fedsparq-adaptive"], "weight": "bold", "fontsize": 22}
    axes.text((most * least) ** 0.5, 97.6, f"{most / least:.0f} times less traffic", **told)
    axes.set(
        xscale="log",
        xlim=(1e5, 4e7),
        ylim=(91, 98.2),
        xlabel="sent and received by a client over the run",
        yticks=range(91, 98, 2),
    )
    axes.xaxis.set_major_formatter(lambda sent, _: size(sent))
    axes.yaxis.set_major_formatter(lambda accuracy, _: f"{accuracy:.0f} %")
    axes.set_title("test accuracy", loc="left", fontsize=18)
    axes.grid(axis="y", color="#e5e7eb")
    axes.tick_params(which="both", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_axisbelow(True)
    return figure


def size(sent: float) -> str:
    """Bytes, for reading."""
    return f"{sent / 1e6:.3g} MB" if sent >= 1e6 else f"{sent / 1e3:.3g} kB"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    with mpl.rc_context(STYLE):
        draw(given.folder).savefig(given.out, metadata={"Date": None})
