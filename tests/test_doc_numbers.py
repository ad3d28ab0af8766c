"""README and docs/CHOOSING.md say of the larger runs what their reports say."""

from __future__ import annotations

import csv
import re

import pytest

from pages import ROOT

RUNS = {
    "MNIST": "PAST_THE_PAPER-files/mnist-{}",
    "100 clients": "PAST_THE_PAPER-files/mnist-{}-mlp-100-clients-50-rounds",
    "Fashion-MNIST": "PAST_THE_PAPER-files/fmnist-{}",
    "CIFAR-10": "WHOLE_DATA-files/cifar10-{}",
}
PARTITIONS = ("iid", "dirichlet-0.5")


def measured(stem: str) -> dict[str, tuple[float, float]]:
    """Accuracy and times less than FedAvg of each method."""
    with (ROOT / "docs" / f"{stem}-results.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    sent = {row["method"]: float(row["upload_bytes_mean"]) for row in rows}
    return {row["method"]: (float(row["accuracy_mean"]), sent["fedavg"] / sent[row["method"]]) for row in rows}


def test_the_readmes_larger_runs() -> None:
    part = (ROOT / "README.md").read_text().partition("## Larger runs")[2].partition("```")[0]
    _, *rows = re.findall(r"^\| ?(.*) \|$", part, re.MULTILINE)
    places = [RUNS[name].format(partition) for name in RUNS for partition in PARTITIONS]
    names = ("fedavg", "fedsparq", "fedsparq multiplier=2.0", "fedsparq-adaptive")
    assert len(rows) == len(places)
    for row, place in zip(rows, places, strict=True):
        found = measured(place)
        for name, cell in zip(names, map(str.strip, row.split("|")[1:]), strict=True):
            if not cell:
                assert name not in found, (row, name)
                continue
            accuracy, *times = (float(number) for number in re.findall(r"(?<!± )\b\d+\.\d+", cell))
            digits = 0.06 if "±" in cell else 0.006
            assert accuracy == pytest.approx(found[name][0], abs=digits), (row, name)
            assert times == ([] if name == "fedavg" else [pytest.approx(found[name][1], abs=0.051)]), (row, name)


def told(where: str, method: str) -> list[tuple[float, float]]:
    """By how much a method differs from FedAvg, and its saving, IID and Dirichlet."""
    runs = [measured(where.format(partition)) for partition in PARTITIONS]
    return [(run[method][0] - run["fedavg"][0], run[method][1]) for run in runs]


@pytest.mark.parametrize(
    ("words", "where", "method", "times"),
    [
        ("MNIST −0.14 and −0.19", RUNS["MNIST"], "fedsparq-adaptive", 157),
        ("Fashion-MNIST −0.34 and −0.46", RUNS["Fashion-MNIST"], "fedsparq-adaptive", 157),
        ("100 clients +0.41 and +0.73", RUNS["100 clients"], "fedsparq-adaptive", 157),
        ("MNIST +0.03 and −0.05 at 1/7.8", RUNS["MNIST"], "fedsparq", 7.8),
        (
            "100 clients −0.01 and −0.17 at 1/106",
            RUNS["100 clients"],
            "fedsparq-adaptive bits=0.3 rounding=nearest",
            106,
        ),
        ("Fashion-MNIST −0.27 and −0.55 at 1/6.3", RUNS["Fashion-MNIST"], "fedsparq", 6.3),
        ("MNIST −0.07 and +0.01 at 1/48", "RESULTS-files/mnist-{}", "fedpaq", 48),
        ("Fashion-MNIST −0.08 and −0.28 at 1/29", "RESULTS-files/fmnist-{}", "fedpaq", 29),
    ],
)
def test_choosing_in_points_against_fedavg(words: str, where: str, method: str, times: float) -> None:
    assert words in (ROOT / "docs" / "CHOOSING.md").read_text()
    points = [float(number.replace("−", "-")) for number in re.findall(r"[+−]\d\.\d\d", words)]
    for point, (difference, saving) in zip(points, told(where, method), strict=True):
        assert point == pytest.approx(difference, abs=0.0051)
        assert saving == pytest.approx(times, rel=0.02)


@pytest.mark.parametrize(
    ("words", "method"),
    [
        ("−0.42 at 1/311", "fedsparq-adaptive bits=0.1"),
        ("−0.20 at 1/158", "fedsparq-adaptive"),
        ("−0.15 at 1/106", "fedsparq-adaptive bits=0.3"),
        ("−0.02 at 1/21.9", "fedsparq-adaptive bits=1.5"),
        ("−0.70 at 1/379", "stc"),
        ("−0.38 at 1/165", "stc fraction=0.03"),
        ("−0.18 at 1/31.7", "eden"),
    ],
)
def test_choosing_on_the_frontier(words: str, method: str) -> None:
    assert words in (ROOT / "docs" / "CHOOSING.md").read_text()
    found = measured("FRONTIER-files/mnist-mini-dirichlet-0.5")
    point, times = words.replace("−", "-").split(" at 1/")
    assert float(point) == pytest.approx(found[method][0] - found["fedavg"][0], abs=0.0051)
    assert float(times) == pytest.approx(found[method][1], rel=0.005)
