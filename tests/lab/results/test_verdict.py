import math

import pytest

from fedsparq.lab.results.grouping import Arm
from fedsparq.lab.results.records import Round, Run
from fedsparq.lab.results.verdict import judge


def arm(label, accuracies, sent):
    """A method with one round for each seed."""
    sent = sent if isinstance(sent, list) else [sent] * len(accuracies)
    runs = [
        Run(method=label, label=label, dataset="d", model="m", partition="iid", seed=seed, clients=3, folder=None,
            rounds=[Round(round=1, accuracy=a, loss=1.0, upload_bytes=b, download_bytes=1,
                          upload_bytes_paper=1, kept=1)])
        for seed, (a, b) in enumerate(zip(accuracies, sent, strict=True))
    ]  # fmt: skip
    return Arm(label, runs)


def names(arms):
    return [arm.label for arm in arms]


def test_the_winner_sends_least_within_a_point_of_the_best():
    found = judge([arm("fedavg", [90, 90.2], 1000), arm("good", [89.5, 89.6], 10), arm("bad", [80, 80.1], 1)])
    assert names(found.least) == ["good"]
    assert found.blurred == []
    assert not found.one_seed
    assert found.times_less == 100


def test_a_gap_inside_the_seeds_spread_is_no_gap():
    wide = [18.7, 27.3, 35.9]
    found = judge([arm("fedavg", [16, 24.3, 32], 1000), arm("best", wide, 50), arm("cheap", [17, 25, 34], 10)])
    assert set(names(found.level)) == {"fedavg", "best", "cheap"}
    assert set(names(found.blurred)) == {"fedavg", "cheap"}
    assert names(found.least) == ["cheap"]


def test_equal_bytes_are_a_draw():
    found = judge([arm("a", [90, 90], [100, 102]), arm("b", [90, 90], [101, 103]), arm("c", [90, 90], [200, 201])])
    assert names(found.least) == ["a", "b"]


def test_one_seed_says_so():
    assert judge([arm("a", [90], 100), arm("b", [91], 50)]).one_seed


@pytest.mark.parametrize(("gap", "apart"), [(1.9, False), (2.2, True)])
def test_apart_is_when_the_ranges_do_not_meet(gap, apart):
    low, high = (
        arm("a", [50 - math.sqrt(0.5), 50 + math.sqrt(0.5)], 1),
        arm("b", [50 + gap - math.sqrt(0.5), 50 + gap + math.sqrt(0.5)], 1),
    )
    assert low.accuracy.std == pytest.approx(1)
    assert low.accuracy.apart(high.accuracy) is apart
