"""Which figures there are: of each bench, and of all benches at once."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from matplotlib.figure import Figure

from fedsparq.lab.report import bars, curves
from fedsparq.lab.report.attacks import attack_table, heat_map
from fedsparq.lab.report.frontier import answer, crowded, featured, loss_frontier
from fedsparq.lab.report.looks import Looks
from fedsparq.lab.report.overview import answers, savings, spending
from fedsparq.lab.report.style import styled
from fedsparq.lab.results.grouping import Bench, slug

_FEW = ("attacks", "answer", "answer-loss", "accuracy", "loss", "variants")


class Drawing(NamedTuple):
    """A figure, the name of its files and of its anchor in the page, and what it shows in one sentence."""

    name: str
    caption: str
    figure: Figure


def draw_bench(bench: Bench, looks: Looks, few: bool = False) -> Iterator[Drawing]:
    """Every figure the runs of this bench have something to show in; or only a few, which answer and explain."""
    with styled():
        for name, caption, draw in _figures(bench, looks):
            if not few or name in _FEW:
                yield Drawing(f"{bench.slug}-{name}", caption, draw())


def draw_overview(benches: Sequence[Bench], looks: Looks) -> Iterator[Drawing]:
    """Figures about all benches at once, where there are several that fit; and one with many settings by itself."""
    several = [bench for bench in benches if not crowded(bench) and len(bench.arms) > 1]
    many = [bench for bench in benches if crowded(bench)]
    if len(several) > 1:
        yield Drawing("answer", "Test accuracy against upload per client", answers(several, looks))
        yield Drawing("saving", "Upload per client, times less than FedAvg", savings(several, looks))
        if not many:
            yield Drawing("curves", "Test accuracy against what a client has sent so far", spending(several, looks))


def _figures(bench: Bench, looks: Looks) -> Iterator[tuple[str, str, Callable[[], Figure]]]:
    at = bench.setting.heading
    table = attack_table(bench)
    if table:
        yield "attacks", table.caption, partial(heat_map, bench, table)
    if len(bench.arms) > 1:
        yield "answer", f"Test accuracy against upload per client, {at}", partial(answer, bench, looks)
        if crowded(bench) and any(math.isfinite(arm.spread("loss").mean) for arm in bench.arms):
            yield "answer-loss", f"Test loss against upload per client, {at}", partial(loss_frontier, bench, looks)
        yield "bytes", f"Upload per client, times less than FedAvg, {at}", partial(bars.upload, bench, looks)
    yield "accuracy", f"Test accuracy over rounds, {at}", partial(curves.accuracy, bench, looks)
    yield "loss", f"Test loss over rounds, {at}", partial(curves.loss, bench, looks)
    if not bench.setting.iid:
        yield "robustness", f"Robustness scores, {at}", partial(bars.robustness, bench, looks)
    sparse = [arm for arm in featured(bench) if arm.spread("kept").mean < 0.999]
    if sparse:
        yield "kept", f"Share of coordinates sent over rounds, {at}", partial(curves.kept, bench, sparse, looks)
    for arm in sparse:
        if curves.layers_differ(arm) and not crowded(bench):
            caption = f"Share of each layer that {arm.name} sends, {at}"
            yield f"layers-{slug(arm.label)}", caption, partial(curves.kept_layers, bench, arm, looks)
    counts = bench.arms[0].runs[0].class_counts
    if counts is not None:
        caption = f"Examples of each class at each client, {at}"
        yield "partition", caption, partial(bars.partition, bench, counts)
    default = bench.arm("fedsparq")
    if bench.variants and default is not None:
        caption = f"FedSparQ's variants against its default, {at}"
        yield "variants", caption, partial(bars.variants, bench, default)
