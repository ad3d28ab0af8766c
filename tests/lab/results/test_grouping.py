from fractions import Fraction

import pytest

from fedsparq.lab.results.grouping import Spread, benches, method_name, pareto, reference, slug
from fedsparq.lab.results.reading import load_runs
from made_runs import make_run


def exact(values):
    n = len(values)
    mean = sum(map(Fraction, values)) / n
    return float(mean), float(sum((Fraction(v) - mean) ** 2 for v in values) / (n - 1)) ** 0.5


def test_mean_and_sample_deviation():
    values = [93.123456789, 94.2, 91.0000001]
    mean, std = exact(values)
    spread = Spread.of(values)
    assert spread.mean == mean
    assert spread.std == pytest.approx(std, rel=1e-15)
    assert Spread.of([0.1 + 0.2]) == Spread(0.1 + 0.2, None, 1)


def test_only_equal_settings_share_a_bench(tmp_path):
    make_run(tmp_path / "a", "fedavg")
    make_run(tmp_path / "b", "fedavg", rounds=5)
    make_run(tmp_path / "c", "fedavg", note="1,000 images")
    make_run(tmp_path / "d", "fedavg", partition="dirichlet(0.5)")
    found = benches(load_runs([tmp_path]).runs)
    assert len(found) == 4
    assert len({bench.slug for bench in found}) == 4
    assert [bench.setting.iid for bench in found] == [True, True, True, False]
    assert any("1,000 images" in bench.setting.subtitle for bench in found)


def test_the_model_is_named_where_it_is_the_only_difference(tmp_path):
    make_run(tmp_path / "a", "fedavg", model="mlp")
    make_run(tmp_path / "b", "fedavg", model="lenet5")
    make_run(tmp_path / "c", "fedavg", model="mlp", partition="dirichlet(0.5)")
    headings = [bench.setting.heading for bench in benches(load_runs([tmp_path]).runs)]
    assert headings == ["MNIST · IID · lenet5", "MNIST · IID · mlp", "MNIST · Dirichlet(0.5)"]


def test_variants_stand_apart_only_beside_the_default(tmp_path):
    make_run(tmp_path, "fedavg")
    make_run(tmp_path, "fedsparq", options={"beta": 0.5})
    (alone,) = benches(load_runs([tmp_path]).runs)
    assert [arm.label for arm in alone.arms] == ["fedavg", "fedsparq beta=0.5"]
    make_run(tmp_path, "fedsparq")
    (competing,) = benches(load_runs([tmp_path]).runs)
    assert [arm.label for arm in competing.arms] == ["fedavg", "fedsparq", "fedsparq beta=0.5"]
    assert not competing.variants
    for beta in (0.6, 0.7):
        make_run(tmp_path, "fedsparq", options={"beta": beta})
    (explaining,) = benches(load_runs([tmp_path]).runs)
    assert [arm.label for arm in explaining.arms] == ["fedavg", "fedsparq"]
    variants = [f"fedsparq beta={beta}" for beta in (0.5, 0.6, 0.7)]
    assert [arm.label for arm in explaining.variants] == variants
    assert [arm.label for arm in explaining.all_arms] == ["fedavg", "fedsparq", *variants]


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("fedavg", "FedAvg"),
        ("fedsparq multiplier=2.0", "FedSparQ multiplier=2.0"),
        ("stc / down: stc", "STC, both ways"),
        ("fedsparq-adaptive / down: float16", "FedSparQ-adaptive / down: float16"),
        ("mine beta=1", "mine beta=1"),
    ],
)
def test_names_as_people_write_them(label, name):
    assert method_name(label) == name


def test_front_and_reference(tmp_path):
    make_run(tmp_path, "dear", reach=0.99, kept=0.9)
    make_run(tmp_path, "cheap", reach=0.985, kept=0.1)
    make_run(tmp_path, "cheapest", reach=0.5, kept=0.01)
    make_run(tmp_path, "beaten", reach=0.6, kept=0.5)
    (bench,) = benches(load_runs([tmp_path]).runs)
    assert [arm.label for arm in pareto(bench.arms)] == ["cheapest", "cheap", "dear"]
    assert reference(bench.arms).label == "dear"


def test_names():
    assert method_name("fedsparq beta=0.5") == "FedSparQ beta=0.5"
    assert method_name("my own") == "my own"
    assert slug("Dirichlet(0.5) / É") == "dirichlet-0.5"


def reached_by_hand(run, goal):
    sent = 0.0
    for record in run.rounds:
        sent += record.upload_bytes
        if record.accuracy >= goal:
            return [sent]
    return []


def test_bytes_to_reach_are_counted_up_to_the_first_round_within_half_a_point_of_fedavg_with_that_seed(tmp_path):
    for seed, reach in enumerate((1.0, 0.9, 0.95)):
        make_run(tmp_path, "fedavg", seed=seed, rounds=6, reach=reach)
        make_run(tmp_path, "top-10", seed=seed, rounds=6, reach=reach)
    make_run(tmp_path, "top-10", seed=9, rounds=6, reach=0.7)
    (bench,) = benches(load_runs([tmp_path]).runs)
    ends = {run.seed: run.rounds[-1].accuracy for run in bench.arm("fedavg").runs}
    assert bench.goal(9) == pytest.approx(sum(ends.values()) / 3 - 0.5)
    for arm in bench.all_arms:
        by_hand = [reached_by_hand(run, ends.get(run.seed, sum(ends.values()) / 3) - 0.5) for run in arm.runs]
        assert bench.reached(arm) == [amount for found in by_hand for amount in found]
    assert len(bench.reached(bench.arm("fedavg"))) == 3
    assert bench.arm("fedavg").runs[0].bytes_to_reach(1000) != bench.arm("fedavg").runs[0].bytes_to_reach(0)
