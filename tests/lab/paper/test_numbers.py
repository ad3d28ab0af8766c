import pytest

from fedsparq.lab import paper
from fedsparq.lab.results import Setting

GRID = [(dataset, method) for dataset in paper.SETUPS for method in paper.METHODS]
NON_IID = [(dataset, method) for dataset, method in GRID if dataset != "mnist"]


def test_the_chart_counts_uploads_of_whole_models():
    assert paper.result("mnist", "iid", "fedavg").chart_bytes == 25 * 4 * (784 * 128 + 128 + 128 * 10 + 10)
    resnet18 = 4 * (11_181_642 + 9_600) + 8 * 20
    assert paper.result("cifar10", "iid", "fedavg").chart_bytes == 99 * resnet18


@pytest.mark.parametrize(("dataset", "method"), GRID)
def test_table_and_chart_agree_but_for_one_slip(dataset, method):
    row = paper.result(dataset, "iid", method)
    ratio = row.chart_bytes / row.upload_bytes
    if (dataset, method) == ("mnist", "fedsparq"):
        assert ratio == pytest.approx(10, rel=0.01)
    else:
        assert ratio == pytest.approx(1, rel=0.06)


@pytest.mark.parametrize(("dataset", "method"), NON_IID)
def test_robustness_follows_its_definition_but_for_one_slip(dataset, method):
    row = paper.result(dataset, paper.NON_IID, method)
    slip = row.loss if (dataset, method) == ("fmnist", "float16") else 0
    assert row.robust1 == pytest.approx(row.accuracy - row.loss + slip, abs=0.011)
    assert row.robust2 == pytest.approx(row.accuracy / row.loss, rel=0.001)


def test_what_the_paper_did_not_run():
    assert paper.result("mnist", paper.NON_IID, "fedsparq") is None
    assert paper.result("mnist", "iid", "stc") is None
    assert paper.result("letters", "iid", "fedavg") is None
    assert paper.result("Fashion-MNIST", "iid", "fedavg").accuracy == 91.8


def test_departures_are_named():
    assert paper.deviation(Setting("mnist", "iid", "mlp", 3, 25, 60000, "")) == ""
    assert paper.deviation(Setting("fmnist", "iid", "LeNet-5", 3, 25, 60000, "")) == ""
    said = paper.deviation(Setting("cifar10", "iid", "resnet18", 4, 10, 12000, "12,000 of 50,000 images"))
    assert said == "10 rounds here, 100 in the paper; 4 clients here, 3 in the paper; 12,000 of 50,000 images"
