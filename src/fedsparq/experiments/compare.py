"""Many runs, one after the other: finished ones are skipped, an unfinished one goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedsparq.experiments.grouping import benches
from fedsparq.experiments.progress import following
from fedsparq.experiments.results import load_runs
from fedsparq.experiments.run import run
from fedsparq.experiments.spec import RunSpec
from fedsparq.experiments.units import ByteWriter, Writer


def compare(specs: Sequence[RunSpec], out: Path, console: Console, workers: int = 1) -> list[dict[str, Any]]:
    """Run what is not finished yet, each into a folder of its own under `out`; returns all summaries."""
    summaries = []
    with following(console) as follow:
        for spec in specs:
            watch = follow(spec)
            summaries.append(run(spec, out / spec.folder_name, resume=True, workers=workers, watch=watch))
    return summaries


_CAPTION = "sent: bytes per client over the run; kept: share of the coordinates that were sent"


def print_tables(folders: Sequence[Path], console: Console) -> None:
    """Accuracy and bytes of each method, means over seeds, one table for each data set and partition."""
    accuracy, loss, sent, kept = Writer(2, " %"), Writer(3), ByteWriter(), Writer(1, " %", 100)
    for bench in benches(load_runs(folders).runs):
        table = Table(title=bench.setting.subtitle, title_justify="left", caption=_CAPTION, caption_justify="left")
        table.add_column("method", overflow="fold")
        for heading in ("accuracy", "loss", "sent", "of FedAvg", "kept"):
            table.add_column(heading, justify="right")
        whole = bench.arm("fedavg")
        for arm in bench.all_arms:
            upload = arm.spread("upload_bytes")
            ratio = f"1/{whole.spread('upload_bytes').mean / upload.mean:.1f}" if whole and upload.mean else ""
            table.add_row(
                arm.label,
                accuracy.spread(arm.spread("accuracy")),
                loss.spread(arm.spread("loss")),
                sent.spread(upload),
                ratio,
                kept.spread(arm.spread("kept")),
            )
        console.print(table)
