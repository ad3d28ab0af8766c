"""Rules against attacks: the table holds what the runs measured, and the heat map shows all of it."""

from __future__ import annotations

import csv
import io
import json
from itertools import product
from pathlib import Path

import pytest

from fedsparq.lab.report.attacks import MEAN, NOBODY, attack_table, heat_map
from fedsparq.lab.report.tables import to_csv
from fedsparq.lab.report.write import write_report
from fedsparq.lab.results.grouping import Bench, benches
from fedsparq.lab.results.reading import load_runs
from made_runs import make_run

METHODS, RULES, ATTACKS = ("fedavg", "fedsparq"), ("", "robust", "multi-krum"), ("", "sign-flip", "backdoor")


def made(root: Path, success: float = 88.0) -> dict[tuple[str, str, str], float]:
    """Runs of every rule under every attack, and their accuracies."""
    found = {}
    for number, (method, rule, attack) in enumerate(product(METHODS, RULES, ATTACKS)):
        options = {"aggregator": rule or "own", "attack": attack or "none"}
        folder = make_run(root, method, seed=0, rounds=3, options=options, reach=0.98 - number / 50)
        faults = f"[faults]\nhostile = {0.2 if attack else 0.0}\nhostile_kinds = ['{attack or 'backdoor'}']\n"
        (folder / "spec.toml").write_text(f"aggregator = '{rule}'\noptimizer = ''\nvariant = '{attack}'\n{faults}")
        lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        lines[-1]["metrics"] = {"backdoor_success": success}
        (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        found[method, rule or MEAN, attack or NOBODY] = lines[-1]["accuracy"]
    return found


def only_bench(root: Path) -> Bench:
    (bench,) = benches(load_runs([root]).runs)
    return bench


def test_table_holds_every_run(tmp_path: Path) -> None:
    accuracies = made(tmp_path)
    table = attack_table(only_bench(tmp_path))
    assert table is not None
    assert [measure.title for measure in table.measures] == [NOBODY, "backdoor", "sign-flip", "backdoor's success %"]
    names = [f"{method}, {rule}" for method in ("FedAvg", "FedSparQ") for rule in (MEAN, "robust", "multi-krum")]
    assert [row.name for row in table.rows] == names
    for row in table.rows:
        rule = row.name.partition(", ")[2]
        expected = [accuracies[row.label, rule, attack] for attack in (NOBODY, "backdoor", "sign-flip")]
        assert [cell.value.mean for cell in row.cells] == pytest.approx([*expected, 88.0])
    assert len(list(csv.reader(io.StringIO(to_csv(table))))) == 1 + len(names)


def test_heat_map_shows_every_cell(tmp_path: Path) -> None:
    accuracies = made(tmp_path)
    bench = only_bench(tmp_path)
    table = attack_table(bench)
    assert table is not None
    figure = heat_map(bench, table)
    shown = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert sorted(shown) == sorted(f"{accuracy:.1f}" for accuracy in accuracies.values())


def test_cells_that_were_not_run_stay_empty(tmp_path: Path) -> None:
    made(tmp_path)
    for path in (*tmp_path.glob("*fedsparq-aggregator-robust-attack-sign-flip*/*"),):
        path.unlink()
    bench = only_bench(tmp_path)
    table = attack_table(bench)
    assert table is not None
    (row,) = [row for row in table.rows if row.name == "FedSparQ, robust"]
    assert [cell.text for cell in row.cells].count("–") == 1
    assert sum(len(axes.texts) for axes in heat_map(bench, table).axes) == len(METHODS) * 9 - 1


def test_without_hostile_clients_there_is_none(tmp_path: Path) -> None:
    make_run(tmp_path, "fedavg")
    make_run(tmp_path, "fedsparq")
    assert attack_table(only_bench(tmp_path)) is None


def test_report_has_both(tmp_path: Path) -> None:
    made(tmp_path / "runs")
    write_report([tmp_path / "runs"], tmp_path / "page.md")
    appendix = (tmp_path / "page-files" / "appendix.md").read_text()
    assert "Rules against attacks" in appendix
    assert "FedSparQ, multi-krum" in appendix
    assert (tmp_path / "page-files" / "mnist-iid-attacks.svg").is_file()
    assert (tmp_path / "page-files" / "mnist-iid-attacks.csv").is_file()
