import math

import pandas as pd
import pytest

from fedsparq.lab.results import Results, Spread

ROW = {"dataset": "d", "partition": "iid", "model": "m", "clients": 3, "rounds": 1, "train_examples": 1, "note": "",
       "done": 1, "loss": 1.0, "download_bytes": 1.0, "upload_bytes_paper": 1.0, "kept": 1.0}  # fmt: skip


def arm(label, accuracies, sent):
    """Rows of a method, one for each seed."""
    sent = sent if isinstance(sent, list) else [sent] * len(accuracies)
    return [
        ROW | {"method": label, "label": label, "seed": seed, "accuracy": accuracy, "upload_bytes": amount}
        for seed, (accuracy, amount) in enumerate(zip(accuracies, sent, strict=True))
    ]


def judge(arms):
    (comparison,) = Results(rows=pd.DataFrame([row for rows in arms for row in rows])).comparisons()
    return comparison.winners()


def test_the_winner_sends_least_within_a_point_of_the_best():
    found = judge([arm("fedavg", [90, 90.2], 1000), arm("good", [89.5, 89.6], 10), arm("bad", [80, 80.1], 1)])
    assert found.least == ["good"]
    assert found.blurred == []
    assert not found.one_seed
    assert found.times_less == 100


def test_a_gap_inside_the_seeds_spread_is_no_gap():
    wide = [18.7, 27.3, 35.9]
    found = judge([arm("fedavg", [16, 24.3, 32], 1000), arm("best", wide, 50), arm("cheap", [17, 25, 34], 10)])
    assert set(found.level) == {"fedavg", "best", "cheap"}
    assert set(found.blurred) == {"fedavg", "cheap"}
    assert found.least == ["cheap"]


def test_equal_bytes_are_a_draw():
    found = judge([arm("a", [90, 90], [100, 102]), arm("b", [90, 90], [101, 103]), arm("c", [90, 90], [200, 201])])
    assert found.least == ["a", "b"]


def test_one_seed_says_so():
    assert judge([arm("a", [90], 100), arm("b", [91], 50)]).one_seed


@pytest.mark.parametrize(("gap", "apart"), [(1.9, False), (2.2, True)])
def test_apart_is_when_the_ranges_do_not_meet(gap, apart):
    low, high = (Spread.of([middle - math.sqrt(0.5), middle + math.sqrt(0.5)]) for middle in (50, 50 + gap))
    assert low.std == pytest.approx(1)
    assert low.differs(high) is apart
