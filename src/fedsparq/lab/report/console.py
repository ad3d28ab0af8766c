"""The results on a terminal."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedsparq.lab.report.tables import KEPT, LOSS, SENT
from fedsparq.lab.report.units import with_spread
from fedsparq.lab.results.grouping import Arm, Bench, Spread, benches
from fedsparq.lab.results.reading import load_runs

_CAPTION = "sent: bytes per client over the run; kept: share of the coordinates that were sent"


def print_tables(folders: Sequence[Path], console: Console) -> None:
    """Accuracy and bytes of each method, means over seeds, one table for each data set and partition.

    Where there is no accuracy, what else the task measures.
    """
    found = load_runs(folders)
    for bench in benches(found.runs):
        console.print(_table(bench, {"accuracy": lambda arm: with_spread(arm.accuracy, 2, " %")}))
    for bench in benches(found.unscored):
        names = sorted({name for arm in bench.all_arms for run in arm.runs for name in run.rounds[-1].metrics})
        console.print(_table(bench, {name: partial(_metric, name) for name in names}))


def _table(bench: Bench, first: Mapping[str, Callable[[Arm], str]]) -> Table:
    table = Table(title=bench.setting.subtitle, title_justify="left", caption=_CAPTION, caption_justify="left")
    table.add_column("method", overflow="fold")
    for heading in (*first, "loss", "sent", "of FedAvg", "kept"):
        table.add_column(heading, justify="right")
    whole = bench.arm("fedavg")
    for arm in bench.all_arms:
        loss, sent, kept = (measure.write(arm.spread(measure.key)) for measure in (LOSS, SENT, KEPT))
        ratio = f"1/{whole.sent.mean / arm.sent.mean:.1f}" if whole and arm.sent.mean else ""
        table.add_row(arm.label, *(write(arm) for write in first.values()), loss, sent, ratio, kept)
    return table


def _metric(name: str, arm: Arm) -> str:
    return with_spread(Spread.of([run.rounds[-1].metrics.get(name, math.nan) for run in arm.runs]), 3)
