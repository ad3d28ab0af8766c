import itertools
import re
from statistics import fmean, stdev

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from fedsparq.lab.report import bars, curves, figures, style
from fedsparq.lab.report.frontier import answer
from fedsparq.lab.report.labels import spread_apart
from fedsparq.lab.report.looks import looks as looks_of
from fedsparq.lab.report.svg import inline, save, svg
from fedsparq.lab.results.grouping import benches
from fedsparq.lab.results.reading import load_runs
from made_runs import METHODS, make_run


@pytest.fixture
def bench(tmp_path):
    for method in METHODS:
        for seed in range(2):
            make_run(tmp_path, method, "fmnist", "dirichlet(0.5)", seed, rounds=4)
    for beta in (0.5, 0.6, 0.7):
        make_run(tmp_path, "fedsparq", "fmnist", "dirichlet(0.5)", rounds=4, options={"beta": beta})
    (found,) = benches(load_runs([tmp_path]).runs)
    return found


@pytest.fixture
def looks(bench):
    return looks_of(arm.label for arm in bench.all_arms)


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].lines if not line.get_label().startswith("_")}


@pytest.mark.parametrize("measure", ["accuracy", "loss"])
def test_curves_are_the_means_of_the_rounds(bench, looks, measure):
    drawn = lines(getattr(curves, measure)(bench, looks))
    assert set(drawn) == set(METHODS)
    for arm in bench.arms:
        seeds = [[getattr(r, measure) for r in run.rounds] for run in arm.runs]
        assert list(drawn[arm.label].get_ydata()) == [fmean(pair) for pair in zip(*seeds, strict=True)]
        assert list(drawn[arm.label].get_xdata()) == [1, 2, 3, 4]


def test_the_band_is_one_deviation_wide(bench, looks):
    figure = curves.accuracy(bench, looks)
    arm, band = bench.arms[0], figure.axes[0].collections[0]
    first = [run.rounds[0].accuracy for run in arm.runs]
    corners = band.get_paths()[0].vertices
    at_one = corners[corners[:, 0] == 1][:, 1]
    assert at_one.min() == pytest.approx(fmean(first) - stdev(first))
    assert at_one.max() == pytest.approx(fmean(first) + stdev(first))


def test_the_answer_stands_at_bytes_and_accuracy(bench, looks):
    drawn = lines(answer(bench, looks))
    for arm in bench.arms:
        (x,), (y,) = drawn[arm.label].get_data()
        assert x == fmean(run.upload_bytes for run in arm.runs)
        assert y == fmean(run.rounds[-1].accuracy for run in arm.runs)


def test_bars_are_times_less_on_a_linear_axis_and_each_label_stands_at_its_bar(bench, looks):
    figure = bars.upload(bench, looks)
    (axes,) = figure.axes
    assert axes.get_xscale() == "linear"
    assert axes.get_xlim()[0] == 0
    whole = fmean(run.upload_bytes for run in bench.arm("fedavg").runs)
    notes = {note.xy[1]: note for note in axes.texts}
    assert len(axes.containers) == len(notes) == len(METHODS)
    for row, container in enumerate(axes.containers):
        (bar,), arm = container, bench.arm(container.get_label())
        ratio = whole / fmean(run.upload_bytes for run in arm.runs)
        assert (bar.get_x(), bar.get_width()) == (0, pytest.approx(ratio))
        assert notes[row].xy[0] == pytest.approx(ratio)
        assert notes[row].get_text().startswith(f"{ratio:.1f}x, ")
        figure.draw_without_rendering()
        assert notes[row].get_window_extent().x1 <= axes.get_window_extent().x1


def test_class_bars_add_up_to_each_client(bench):
    known = bench.arms[0].runs[0].class_counts
    axes, counts = bars.partition(bench, known).axes[0], known.counts
    widths = [patch.get_width() for patch in axes.patches]
    assert np.array(widths).reshape(len(counts), -1).tolist() == counts


def test_a_method_has_one_colour_in_every_figure(bench, looks):
    for arm in bench.arms:
        colours = {
            lines(answer(bench, looks))[arm.label].get_color(),
            lines(curves.loss(bench, looks))[arm.label].get_color(),
        }
        assert colours == {looks[arm.label].colour}


def test_lines_carry_the_dash_and_the_mark_of_their_method(bench, looks):
    drawn = lines(curves.accuracy(bench, looks))
    assert {label: line.get_marker() for label, line in drawn.items()} == {k: looks[k].marker for k in METHODS}
    assert {label for label, line in drawn.items() if line.get_linestyle() == "-"} == {"fedavg", "fedsparq"}


def test_every_figure_with_bands_or_bars_says_what_they_are(bench, looks, tmp_path):
    for figure in (answer(bench, looks), curves.accuracy(bench, looks), curves.loss(bench, looks)):
        assert "mean ± deviation over 2 seeds" in svg(figure, "any")
    make_run(tmp_path / "one", "fedavg", rounds=3)
    (lonely,) = benches(load_runs([tmp_path / "one"]).runs)
    assert "one seed: the spread is not known" in svg(curves.loss(lonely, looks_of(["fedavg"])), "any")


def test_no_error_bar_crosses_a_label(tmp_path):
    for method in METHODS:
        for seed in range(3):
            make_run(tmp_path, method, "fmnist", "iid", seed, rounds=3, reach=0.97 + 0.01 * seed)
    (bench,) = benches(load_runs([tmp_path]).runs)
    figure = answer(bench, looks_of(METHODS))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    bars_drawn = [
        axes.transData.transform(path.vertices)
        for c in axes.collections[: len(METHODS) * 2]
        for path in c.get_paths()
        if len(path.vertices) == 2
    ]
    labels = [Text.get_window_extent(text).padded(-1) for text in axes.texts]  # without the line that leads to it
    assert len(labels) == len(METHODS)
    crossed = [
        box
        for box in labels
        for a, b in bars_drawn
        if box.x0 < a[0] < box.x1 and min(a[1], b[1]) < box.y1 and max(a[1], b[1]) > box.y0
    ]
    assert crossed == []


def test_every_figure_of_a_bench(bench, looks):
    names = [drawing.name.removeprefix(f"{bench.slug}-") for drawing in figures.draw_bench(bench, looks)]
    expected = ["answer", "bytes", "accuracy", "loss", "robustness", "kept", "layers-fedsparq", "partition", "variants"]
    assert names == expected


def test_long_names_leave_room_for_the_curves(tmp_path):
    for bits in (0.5, 0.7):
        options = {
            "multiplier": 2.0,
            "scope": "global",
            "rounding": "stochastic",
            "residual": "kept-only",
            "beta": bits,
        }
        make_run(tmp_path, "fedsparq", "mnist", "iid", rounds=3, options=options)
    make_run(tmp_path, "fedavg", "mnist", "iid", rounds=3)
    (bench,) = benches(load_runs([tmp_path]).runs)
    looks = looks_of(arm.label for arm in bench.all_arms)
    assert len({arm.short_name for arm in bench.all_arms}) == 3
    for drawing in figures.draw_bench(bench, looks):
        width = drawing.figure.axes[0].get_position().width
        assert width > 0.3, drawing.name


def test_notes_stand_on_every_figure(tmp_path):
    for method in ("fedavg", "fedsparq"):
        make_run(tmp_path, method, "cifar10", "dirichlet(0.5)", rounds=3, note="5 % of the images")
    (bench,) = benches(load_runs([tmp_path]).runs)
    looks = looks_of(arm.label for arm in bench.arms)
    drawn = [d.figure for d in figures.draw_bench(bench, looks)]
    assert len(drawn) >= 7
    for figure in drawn:
        assert "5 % of the images" in svg(figure, "any")


def test_files_are_the_same_each_time_and_their_ids_their_own(bench, looks, tmp_path):
    for folder in ("one", "two"):
        save(answer(bench, looks), tmp_path / folder, "answer")
    for kind in ("svg", "png", "pdf"):
        first, second = ((tmp_path / folder / f"answer.{kind}").read_bytes() for folder in ("one", "two"))
        assert first == second
    other = svg(answer(bench, looks), "other")
    ids = set(re.findall(r'\bid="([^"]+)"', (tmp_path / "one" / "answer.svg").read_text()))
    assert ids
    assert not ids & set(re.findall(r'\bid="([^"]+)"', other))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', other)) <= set(re.findall(r'\bid="([^"]+)"', other))


def test_inline_figures_follow_the_theme(bench, looks):
    page = inline(svg(answer(bench, looks), "answer"), 'a "label" <here>')
    assert "var(--m-fedsparq)" in page
    assert "var(--ink)" in page
    assert style.INK.light not in page
    assert 'aria-label="a &#34;label&#34; &lt;here&gt;"' in page


@given(st.lists(st.floats(0, 200), min_size=1, max_size=15).map(sorted))
def test_labels_keep_their_order_and_their_distance(heights):
    moved = spread_apart(heights, 10, -1000, 1000)
    assert all(b - a >= 10 - 1e-6 for a, b in itertools.pairwise(moved))
    if all(b - a >= 10 for a, b in itertools.pairwise(heights)):
        assert moved == pytest.approx(heights)
    assert sum(moved) == pytest.approx(sum(heights), abs=1e-6)


def test_labels_stay_below_the_ceiling():
    assert spread_apart([99, 100, 100], 10, 0, 100) == pytest.approx([80, 90, 100])
    assert spread_apart([0, 0, 1], 10, 0, 100) == pytest.approx([0, 10, 20])


def test_settings_use_the_palettes_colours():
    page = {shade.light for shade in (style.INK, style.MUTED, style.GRID, style.SURFACE)}
    with style.styled():
        names = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.facecolor", "grid.color")
        names += ("xtick.color", "ytick.color", "figure.facecolor", "savefig.facecolor")
        assert {matplotlib.rcParams[name] for name in names} == page
