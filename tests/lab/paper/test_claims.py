import json
from pathlib import Path

import pytest

from fedsparq.lab.paper import Verdict, judge
from fedsparq.lab.results import Results
from made_runs import make_run


def claims(root):
    return {claim.claim: claim for claim in judge(Results.read([root]).comparisons())}


def test_without_runs_nothing_is_claimed_to_be_tested(tmp_path):
    make_run(tmp_path, "fedavg", "letters")
    found = claims(tmp_path)
    tested = {name for name, claim in found.items() if claim.measured != "not tested here"}
    assert tested == {"Residuals telescope", "Rounding is unbiased"}
    assert found["90 % fewer bytes than FedAvg"].verdict is Verdict.NOT_TESTED
    assert found["16 times fewer bytes on MNIST"].verdict is Verdict.CONTRADICTS
    assert all(claim.command for claim in found.values())


def test_bytes_saved(tmp_path):
    make_run(tmp_path, "fedavg")
    make_run(tmp_path, "fedsparq", kept=0.01)
    make_run(tmp_path, "float16")
    found = claims(tmp_path)
    assert found["90 % fewer bytes than FedAvg"].verdict is Verdict.MEASURED
    # kept 1 % and a little more in the first rounds: 1.9 bytes a coordinate as sent, 6 by the formula, of FedAvg's 4
    assert "MNIST IID 100 %" in found["90 % fewer bytes than FedAvg"].measured
    assert "accounting: 98 %" in found["90 % fewer bytes than FedAvg"].measured
    assert found["90 % fewer bytes than FedAvg"].figure == "mnist-iid-bytes"
    assert found["23 % less bandwidth than float16"].verdict is Verdict.CONTRADICTS


def test_one_data_set_short_of_ninety_percent_is_not_reached(tmp_path):
    for dataset, kept in (("mnist", 0.01), ("fmnist", 0.5)):
        make_run(tmp_path, "fedavg", dataset)
        make_run(tmp_path, "fedsparq", dataset, kept=kept)
    assert claims(tmp_path)["90 % fewer bytes than FedAvg"].verdict is Verdict.NOT_REACHED


@pytest.mark.parametrize(("reach", "verdict"), [(1.0, Verdict.MEASURED), (0.95, Verdict.NOT_REACHED)])
def test_accuracy_kept(tmp_path, reach, verdict):
    make_run(tmp_path, "fedavg")
    make_run(tmp_path, "fedsparq", reach=reach)
    assert claims(tmp_path)["Accuracy kept or better"].verdict is verdict


@pytest.mark.parametrize(("reach", "verdict"), [(0.9, Verdict.MEASURED), (0.98, Verdict.NOT_REACHED)])
def test_six_percent_up(tmp_path, reach, verdict):
    make_run(tmp_path, "fedavg", reach=reach)
    make_run(tmp_path, "fedsparq")
    found = claims(tmp_path)["Accuracy up by 6 %"]
    assert found.verdict is verdict
    assert "+" in found.measured


@pytest.mark.parametrize(("reach", "verdict"), [(0.6, Verdict.MEASURED), (0.99, Verdict.NOT_REACHED)])
def test_robustness_counts_the_best_of_the_papers_baselines_only(tmp_path, reach, verdict):
    for method in ("fedavg", "top-10"):
        make_run(tmp_path, method, "cifar10", "dirichlet(0.5)", reach=reach)
    make_run(tmp_path, "fedsparq", "cifar10", "dirichlet(0.5)")
    make_run(tmp_path, "stc", "cifar10", "dirichlet(0.5)", reach=1.3)
    assert claims(tmp_path)["Robustness up by 50 %"].verdict is verdict


def test_eighty_percent_by_round_three_is_read_from_round_three(tmp_path):
    folder = make_run(tmp_path, "fedsparq")
    third = json.loads(folder.joinpath("rounds.jsonl").read_text().splitlines()[2])["accuracy"]
    found = claims(tmp_path)["80 % accuracy by round 3 on MNIST"]
    assert f"{third:.1f} %" in found.measured
    assert found.verdict is (Verdict.MEASURED if third >= 80 else Verdict.NOT_REACHED)


def test_a_layer_that_sends_nothing_denies_contraction(tmp_path):
    folder = make_run(tmp_path, "fedsparq")
    assert claims(tmp_path)["Contraction: delta_min > 0"].verdict is Verdict.MEASURED
    rounds = [json.loads(line) for line in folder.joinpath("rounds.jsonl").read_text().splitlines()]
    rounds[4]["kept_layers"]["fc2.bias"] = 0.0
    folder.joinpath("rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rounds))
    found = claims(tmp_path)["Contraction: delta_min > 0"]
    assert found.verdict is Verdict.NOT_REACHED
    assert "fc2.bias in round 5" in found.measured


def test_ablations_are_quoted_where_they_were_run(tmp_path):
    make_run(tmp_path, "fedsparq")
    for residual in ("kept-only", "off", "none"):
        make_run(tmp_path, "fedsparq", options={"residual": residual}, reach=0.9)
    found = claims(tmp_path)["Residuals telescope"]
    assert "residual=kept-only against the default on MNIST IID" in found.measured
    assert found.figure == "mnist-iid-variants"


def test_the_tests_that_claims_name_exist(tmp_path):
    make_run(tmp_path)
    named = {word for claim in claims(tmp_path).values() for word in claim.command.split() if word.startswith("tests/")}
    assert len(named) == 2
    assert all((Path(__file__).parents[3] / name).is_file() for name in named)
