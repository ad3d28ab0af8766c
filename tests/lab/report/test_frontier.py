import pytest

from fedsparq.lab.report import frontier
from fedsparq.lab.report.looks import looks
from fedsparq.lab.report.sidebyside import side_by_side
from fedsparq.lab.report.svg import svg
from fedsparq.lab.results.grouping import benches
from fedsparq.lab.results.reading import load_runs
from fedsparq.lab.results.verdict import judge
from made_runs import make_run


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


def test_small_multiples_one_for_each_method_its_settings_joined_by_bytes(bench):
    assert frontier.crowded(bench)
    figure = frontier.answer(bench, looks(arm.label for arm in bench.arms))
    panels = {axes.get_title("left"): axes for axes in figure.axes if axes.get_visible()}
    assert set(panels) == {"FedAvg", "STC", "FedSparQ-adaptive"}
    floor = panels["STC"].get_ylim()[0]
    for method, arms in frontier.families(bench.arms).items():
        axes = panels[frontier.method_name(method)]
        spots = [(arm.sent.mean, arm.accuracy.mean) for arm in arms]
        assert spots == sorted(spots, key=lambda spot: spot[0])
        (line,) = (line for line in axes.lines if line.get_label() == method)
        assert list(zip(*line.get_data(), strict=True)) == [spot for spot in spots if spot[1] >= floor]
        behind = axes.lines[0]
        assert len(behind.get_xdata()) == len(bench.arms)


def test_what_is_far_below_stands_at_the_bottom(bench):
    figure = frontier.frontier(bench, looks(arm.label for arm in bench.arms))
    floor = figure.axes[0].get_ylim()[0]
    sunk = [arm for arm in bench.arms if arm.accuracy.mean < floor]
    triangles = [
        x for axes in figure.axes for line in axes.lines if line.get_marker() == "v" and line.get_linestyle() == "None"
        for x, y in zip(*line.get_data(), strict=True) if y == floor
    ]  # fmt: skip
    assert sorted(triangles) == sorted(arm.sent.mean for arm in sunk)
    assert len(sunk) >= 2
    assert "triangles: below" in svg(figure, "any")


def test_the_loss_stands_with_the_least_at_the_bottom_and_what_is_far_above_at_the_top(bench):
    figure = frontier.loss_frontier(bench, looks(arm.label for arm in bench.arms))
    bottom, edge = figure.axes[0].get_ylim()
    losses = {arm.sent.mean: arm.spread("loss").mean for arm in bench.arms}
    shown, triangles = {}, set()
    for axes in figure.axes:
        for line in axes.lines[1:]:
            into = triangles if line.get_marker() == "^" and line.get_linestyle() == "None" else shown
            spots = zip(*line.get_data(), strict=True)
            into.update({x for x, y in spots if y == edge} if into is triangles else dict(spots))
    assert bottom < min(losses.values())
    assert shown == {sent: loss for sent, loss in losses.items() if loss <= edge}
    assert triangles == {sent for sent, loss in losses.items() if loss > edge}
    assert triangles
    assert "triangles: above" in svg(figure, "any")


def test_curves_are_drawn_of_a_few_the_answer_among_them(bench):
    few = {arm.label for arm in frontier.featured(bench)}
    assert len(few) <= 8
    assert "fedavg" in few
    assert judge(bench.arms).least[0].label in few


def test_of_many_settings_the_table_has_those_that_answer(bench):
    table = side_by_side([bench])
    assert len(table.titles) == 6 < len(bench.arms)
    assert {arm.name for arm in frontier.featured(bench)} <= set(table.titles)
    assert {"FedAvg", judge(bench.arms).least[0].name} <= set(table.titles)


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
