import json
import math
from fractions import Fraction

import pytest

from fedsparq.lab.names import human_bytes, method_name, slug
from fedsparq.lab.results import Results, Spread
from made_runs import make_run


def exact(values):
    n = len(values)
    mean = sum(map(Fraction, values)) / n
    return float(mean), float(sum((Fraction(v) - mean) ** 2 for v in values) / (n - 1)) ** 0.5


def test_mean_and_sample_deviation():
    values = [93.123456789, 94.2, 91.0000001]
    mean, std = exact(values)
    spread = Spread.of(values)
    assert spread.mean == pytest.approx(mean, rel=1e-15)
    assert spread.std == pytest.approx(std, rel=1e-15)
    one = Spread.of([0.1 + 0.2])
    assert (one.mean, one.n) == (0.1 + 0.2, 1)
    assert math.isnan(one.std)


def test_only_equal_settings_share_a_bench(tmp_path):
    make_run(tmp_path / "a", "fedavg")
    make_run(tmp_path / "b", "fedavg", rounds=5)
    make_run(tmp_path / "c", "fedavg", note="1,000 images")
    make_run(tmp_path / "d", "fedavg", partition="dirichlet(0.5)")
    found = Results.read([tmp_path]).comparisons()
    assert len(found) == 4
    assert len({bench.slug for bench in found}) == 4
    assert [bench.setting.iid for bench in found] == [True, True, True, False]
    assert any("1,000 images" in bench.subtitle for bench in found)


def test_the_model_is_named_where_it_is_the_only_difference(tmp_path):
    make_run(tmp_path / "a", "fedavg", model="mlp")
    make_run(tmp_path / "b", "fedavg", model="lenet5")
    make_run(tmp_path / "c", "fedavg", model="mlp", partition="dirichlet(0.5)")
    headings = [bench.heading for bench in Results.read([tmp_path]).comparisons()]
    assert headings == ["MNIST · IID · lenet5", "MNIST · IID · mlp", "MNIST · Dirichlet(0.5)"]


def test_variants_stand_apart_only_beside_the_default(tmp_path):
    make_run(tmp_path, "fedavg")
    make_run(tmp_path, "fedsparq", options={"beta": 0.5})
    (alone,) = Results.read([tmp_path]).comparisons()
    assert alone.main == ["fedavg", "fedsparq beta=0.5"]
    make_run(tmp_path, "fedsparq")
    (competing,) = Results.read([tmp_path]).comparisons()
    assert competing.main == ["fedavg", "fedsparq", "fedsparq beta=0.5"]
    assert not competing.variants
    for beta in (0.6, 0.7):
        make_run(tmp_path, "fedsparq", options={"beta": beta})
    (explaining,) = Results.read([tmp_path]).comparisons()
    assert explaining.main == ["fedavg", "fedsparq"]
    variants = [f"fedsparq beta={beta}" for beta in (0.5, 0.6, 0.7)]
    assert explaining.variants == variants
    assert explaining.labels == ["fedavg", "fedsparq", *variants]


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
    (bench,) = Results.read([tmp_path]).comparisons()
    assert bench.pareto() == ["cheapest", "cheap", "dear"]
    assert bench.reference == "dear"


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
    (bench,) = Results.read([tmp_path]).comparisons()
    runs = {(run.label, run.seed): run for run in bench.runs}
    ends = {run.seed: run.rounds[-1].accuracy for run in bench.runs_of("fedavg")}
    assert bench.goal(9) == pytest.approx(sum(ends.values()) / 3 - 0.5)
    for row in bench.measured.to_dict("records"):
        by_hand = reached_by_hand(runs[row["label"], row["seed"]], ends.get(row["seed"], sum(ends.values()) / 3) - 0.5)
        assert [row["reach_bytes"]] == pytest.approx(by_hand) if by_hand else math.isnan(row["reach_bytes"])
    assert bench.spread("fedavg", "reach_bytes").mean > 0


def test_a_seed_without_a_finite_loss_leaves_no_mean(tmp_path):
    make_run(tmp_path, "fedavg", seed=0, rounds=2)
    folder = make_run(tmp_path, "fedavg", seed=1, rounds=2)
    lines = folder.joinpath("rounds.jsonl").read_text().splitlines()
    lines[-1] = json.dumps(json.loads(lines[-1]) | {"loss": None})
    folder.joinpath("rounds.jsonl").write_text("\n".join(lines) + "\n")
    summary = json.loads(folder.joinpath("summary.json").read_text()) | {"loss": None}
    folder.joinpath("summary.json").write_text(json.dumps(summary))
    (bench,) = Results.read([tmp_path]).comparisons()
    assert math.isnan(bench.mean("fedavg", "loss"))
    assert bench.spread("fedavg", "loss").n == 2
    assert math.isnan(bench.curve("fedavg", "loss")[1].mean)
    assert math.isfinite(bench.curve("fedavg", "loss")[0].mean)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (12, "12 B"),
        (999.7, "1.00 kB"),
        (6_240_386, "6.24 MB"),
        (185e6, "185 MB"),
        (4.69e9, "4.69 GB"),
        (999_600, "1.00 MB"),
        (float("nan"), "not finite"),
    ],
)
def test_bytes_for_people(count, text):
    assert human_bytes(count) == text
