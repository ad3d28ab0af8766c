import itertools
import re
from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import METHODS, make_run

from fedsparq.experiments import bars, curves, figures, style
from fedsparq.experiments.grouping import benches
from fedsparq.experiments.placing import spread_apart
from fedsparq.experiments.results import load_runs


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
    return style.looks(arm.label for arm in bench.all_arms)


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].lines if not line.get_label().startswith("_")}


@pytest.mark.parametrize("measure", ["accuracy", "loss"])
def test_curves_are_the_means_of_the_rounds(bench, looks, measure):
    drawn = lines(curves.measure_curves(bench, looks, measure))
    assert set(drawn) == set(METHODS)
    for arm in bench.arms:
        seeds = [[getattr(r, measure) for r in run.rounds] for run in arm.runs]
        assert list(drawn[arm.label].get_ydata()) == [fmean(pair) for pair in zip(*seeds, strict=True)]
        assert list(drawn[arm.label].get_xdata()) == [1, 2, 3, 4]


def test_the_band_is_one_deviation_wide(bench, looks):
    figure = curves.measure_curves(bench, looks, "accuracy")
    arm, band = bench.arms[0], figure.axes[0].collections[0]
    first = [run.rounds[0].accuracy for run in arm.runs]
    corners = band.get_paths()[0].vertices
    at_one = corners[corners[:, 0] == 1][:, 1]
    assert at_one.min() == pytest.approx(fmean(first) - stdev(first))
    assert at_one.max() == pytest.approx(fmean(first) + stdev(first))


def test_the_answer_stands_at_bytes_and_accuracy(bench, looks):
    drawn = lines(figures.answer(bench, looks))
    for arm in bench.arms:
        (x,), (y,) = drawn[arm.label].get_data()
        assert x == fmean(run.upload_bytes for run in arm.runs)
        assert y == fmean(run.rounds[-1].accuracy for run in arm.runs)


def test_upload_bars_end_at_what_was_sent_and_ticks_at_the_formula(bench, looks):
    axes = bars.upload(bench, looks).axes[0]
    for container in axes.containers:
        arm = bench.arm(container.get_label())
        (bar,) = container
        assert bar.get_x() + bar.get_width() == pytest.approx(arm.spread("upload_bytes").mean)
    ticks = sorted(line.get_xdata()[0] for line in axes.lines)
    assert ticks == pytest.approx(sorted(arm.spread("upload_bytes_paper").mean for arm in bench.arms))


def test_class_bars_add_up_to_each_client(bench):
    axes = bars.partition(bench).axes[0]
    counts = bench.arms[0].runs[0].class_counts.counts
    widths = [patch.get_width() for patch in axes.patches]
    assert np.array(widths).reshape(len(counts), -1).tolist() == counts


def test_a_method_has_one_colour_in_every_figure(bench, looks):
    for arm in bench.arms:
        colours = {
            lines(figures.answer(bench, looks))[arm.label].get_color(),
            lines(curves.measure_curves(bench, looks, "loss"))[arm.label].get_color(),
        }
        assert colours == {looks[arm.label].colour}
    assert len({(look.colour, look.line) for look in looks.values()}) == len(looks)


def test_forty_methods_still_differ():
    looks = style.looks([*METHODS, *(f"method-{i}" for i in range(34))])
    assert len({(look.colour, look.marker, look.line) for look in looks.values()}) == 40


def test_every_figure_of_a_bench(bench, looks):
    names = [drawing.name.removeprefix(f"{bench.slug}-") for drawing in figures.draw_bench(bench, looks)]
    expected = ["accuracy", "loss", "bytes", "robustness", "kept", "layers-fedsparq", "partition", "variants"]
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
    looks = style.looks(arm.label for arm in bench.all_arms)
    assert len({arm.short_name for arm in bench.all_arms}) == 3
    for drawing in [*figures.draw_bench(bench, looks), figures.Drawing("answer", "", figures.answer(bench, looks))]:
        width = drawing.figure.axes[0].get_position().width
        assert width > 0.3, drawing.name


def test_notes_stand_on_every_figure(tmp_path):
    for method in ("fedavg", "fedsparq"):
        make_run(tmp_path, method, "cifar10", "dirichlet(0.5)", rounds=3, note="5 % of the images")
    (bench,) = benches(load_runs([tmp_path]).runs)
    looks = style.looks(arm.label for arm in bench.arms)
    drawn = [*(d.figure for d in figures.draw_bench(bench, looks)), figures.answer(bench, looks)]
    assert len(drawn) >= 7
    for figure in drawn:
        assert "5 % of the images" in style.svg(figure, "any")


def test_files_are_the_same_each_time_and_their_ids_their_own(bench, looks, tmp_path):
    for folder in ("one", "two"):
        style.save(figures.answer(bench, looks), tmp_path / folder, "answer")
    for kind in ("svg", "png", "pdf"):
        first, second = ((tmp_path / folder / f"answer.{kind}").read_bytes() for folder in ("one", "two"))
        assert first == second
    other = style.svg(figures.answer(bench, looks), "other")
    ids = set(re.findall(r'\bid="([^"]+)"', (tmp_path / "one" / "answer.svg").read_text()))
    assert ids
    assert not ids & set(re.findall(r'\bid="([^"]+)"', other))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', other)) <= set(re.findall(r'\bid="([^"]+)"', other))


def test_inline_figures_follow_the_theme(bench, looks):
    page = style.inline(style.svg(figures.answer(bench, looks), "answer"), 'a "label" <here>')
    assert "var(--m-fedsparq)" in page
    assert "var(--ink)" in page
    assert style.INK.light not in page
    assert 'aria-label="a &quot;label&quot; &lt;here>"' in page


@given(st.lists(st.floats(0, 200), min_size=1, max_size=15).map(sorted))
def test_labels_keep_their_order_and_their_distance(places):
    moved = spread_apart(places, 10, -1000, 1000)
    assert all(b - a >= 10 - 1e-6 for a, b in itertools.pairwise(moved))
    if all(b - a >= 10 for a, b in itertools.pairwise(places)):
        assert moved == pytest.approx(places)
    assert sum(moved) == pytest.approx(sum(places), abs=1e-6)


def test_labels_stay_below_the_ceiling():
    assert spread_apart([99, 100, 100], 10, 0, 100) == pytest.approx([80, 90, 100])
    assert spread_apart([0, 0, 1], 10, 0, 100) == pytest.approx([0, 10, 20])
