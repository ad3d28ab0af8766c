import pytest
from made_runs import make_run

from fedsparq.experiments import figures, frontier, style
from fedsparq.experiments.grouping import benches
from fedsparq.experiments.results import load_runs


@pytest.fixture
def bench(tmp_path):
    """Three methods at several settings each; the worst are far below the best."""
    make_run(tmp_path, "fedavg", rounds=2)
    for fraction in (0.01, 0.02, 0.03, 0.05, 0.1):
        for seed in range(2):
            options = {"fraction": fraction}
            make_run(tmp_path, "stc", seed=seed, rounds=2, options=options, reach=0.5 + 5 * fraction, kept=fraction)
    for bits in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5):
        make_run(tmp_path, "fedsparq-adaptive", rounds=2, options={"bits": bits}, reach=0.99, kept=bits / 20)
    (found,) = benches(load_runs([tmp_path]).runs)
    return found


def test_each_method_is_a_line_through_its_settings_by_bytes(bench):
    assert frontier.crowded(bench)
    axes = figures.answer(bench, style.looks(arm.label for arm in bench.arms)).axes[0]
    lines = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
    assert set(lines) == {"fedavg", "stc", "fedsparq-adaptive"}
    floor = axes.get_ylim()[0]
    for method, arms in frontier.families(bench.arms).items():
        spots = [(arm.spread("upload_bytes").mean, arm.spread("accuracy").mean) for arm in arms]
        assert spots == sorted(spots, key=lambda spot: spot[0])
        shown = [spot for spot in spots if spot[1] >= floor]
        assert list(zip(*lines[method].get_data(), strict=True)) == shown


def test_what_is_far_below_stands_at_the_bottom(bench):
    figure = frontier.frontier(bench)
    axes = figure.axes[0]
    floor = axes.get_ylim()[0]
    sunk = [arm for arm in bench.arms if arm.spread("accuracy").mean < floor]
    triangles = [x for line in axes.lines if line.get_marker() == "v" for x in line.get_xdata()]
    assert sorted(triangles) == sorted(arm.spread("upload_bytes").mean for arm in sunk)
    assert len(sunk) >= 2
    assert "triangles: below" in style.svg(figure, "any")


def test_other_words_make_another_line(tmp_path):
    for options in ({"bits": 0.5}, {"bits": 1.0}, {"rounding": "nearest", "bits": 1e-05}):
        make_run(tmp_path, "fedsparq-adaptive", rounds=2, options=options)
    (bench,) = benches(load_runs([tmp_path]).runs)
    found = {name: len(arms) for name, arms in frontier.families(bench.arms).items()}
    assert found == {"fedsparq-adaptive": 2, "fedsparq-adaptive rounding=nearest": 1}


def test_few_settings_are_named_one_by_one(tmp_path):
    for method in ("fedavg", "fedsparq", "stc"):
        make_run(tmp_path, method, rounds=2)
    (bench,) = benches(load_runs([tmp_path]).runs)
    assert not frontier.crowded(bench)
