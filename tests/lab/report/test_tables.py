import csv
import io
import json
from fractions import Fraction

import pytest

from fedsparq.lab.report import tables
from fedsparq.lab.report.render import TEMPLATES
from fedsparq.lab.report.units import bytes_with_spread, tick_bytes, with_spread
from fedsparq.lab.results.grouping import Spread, benches
from fedsparq.lab.results.reading import load_runs
from made_runs import make_run


@pytest.fixture
def folders(tmp_path):
    return {
        (method, seed): make_run(tmp_path, method, "fmnist", "dirichlet(0.5)", seed)
        for method in ("fedavg", "fedsparq")
        for seed in (range(3) if method == "fedsparq" else range(1))
    }


@pytest.fixture
def bench(folders, tmp_path):
    (found,) = benches(load_runs([tmp_path]).runs)
    return found


def written(folder):
    return [json.loads(line) for line in folder.joinpath("rounds.jsonl").read_text().splitlines()]


def page(table):
    return TEMPLATES.get_template("table.html.j2").render(table=table, number=0)


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_the_csv_agrees_with_the_rounds_to_the_last_digit(bench, folders):
    rows = {row["method"]: row for row in read(tables.to_csv(tables.result_table(bench)))}
    assert float(rows["fedavg"]["accuracy_mean"]) == written(folders["fedavg", 0])[-1]["accuracy"]
    assert rows["fedavg"]["accuracy_std"] == ""
    ends = [Fraction(written(folders["fedsparq", seed])[-1]["loss"]) for seed in range(3)]
    assert float(rows["fedsparq"]["loss_mean"]) == float(sum(ends) / 3)
    assert float(rows["fedsparq"]["accuracy_in_paper"]) == 87.26
    assert rows["fedsparq"]["seeds"] == "0 1 2"


def test_the_rounds_csv_is_the_rounds(bench, folders):
    rows = read(tables.rounds_csv(bench))
    assert len(rows) == 4 * 25
    for row in rows:
        line = written(folders[row["method"], int(row["seed"])])[int(row["round"]) - 1]
        for key in ("accuracy", "loss", "upload_bytes", "download_bytes", "upload_bytes_paper", "kept"):
            assert float(row[key]) == line[key]


def test_the_page_shows_mean_spread_paper_and_the_best_in_bold(bench):
    table = tables.result_table(bench)
    html = page(table)
    ours = next(arm for arm in bench.arms if arm.label == "fedsparq").spread("accuracy")
    assert f"{ours.mean:.2f} ± {ours.std:.2f}" in html
    assert "<small>paper 87.26</small>" in html
    for column, measure in enumerate(table.measures):
        means = [row.cells[column].value.mean for row in table.rows]
        bold = [row.cells[column].best for row in table.rows]
        high = measure.key in ("accuracy", "robust1", "robust2", "times_less")
        if measure.best is None:
            assert not any(bold)
        else:
            assert bold[means.index((max if high else min)(means))]


def test_whatever_the_seeds_do_not_keep_apart_from_the_best_is_bold_too(tmp_path):
    for method, reach in (("fedavg", 0.95), ("top-10", 0.951), ("random-10", 0.8)):
        for seed in range(3):
            make_run(tmp_path, method, seed=seed, reach=reach)
    (bench,) = benches(load_runs([tmp_path]).runs)
    assert not bench.arm("fedavg").accuracy.apart(bench.arm("top-10").accuracy)
    bold = {row.label: row.cells[0].best for row in tables.result_table(bench).rows}
    assert bold == {"fedavg": True, "top-10": True, "random-10": False}


def test_fedavg_always_reaches_its_own_accuracy_and_others_are_counted_by_seed(tmp_path):
    for seed, reach in enumerate((1.0, 0.8, 0.9)):
        make_run(tmp_path, "fedavg", seed=seed, reach=reach)
        make_run(tmp_path, "top-10", seed=seed, reach=1.0 if seed == 1 else 0.7)
        make_run(tmp_path, "random-10", seed=seed, reach=0.5)
    (bench,) = benches(load_runs([tmp_path]).runs)
    table = tables.result_table(bench)
    column = [measure.key for measure in table.measures].index("reach_bytes")
    texts = {row.label: row.cells[column].text for row in table.rows}
    assert "MB" in texts["fedavg"]
    assert texts["top-10"] == "1 of 3 seeds"
    assert texts["random-10"] == "not reached"


def test_method_accuracy_and_upload_come_first(bench):
    assert [measure.key for measure in tables.result_table(bench).measures][:2] == ["accuracy", "upload_bytes"]


def test_paper_bytes_stand_beside_ours_only_for_the_same_number_of_rounds(tmp_path):
    for rounds in (25, 5):
        make_run(tmp_path / str(rounds), "fedsparq", rounds=rounds)
    for bench in benches(load_runs([tmp_path]).runs):
        cells = tables.result_table(bench).rows[0].cells
        text = cells[3].paper_text
        assert text == ("624 kB, its chart 6.24 MB" if bench.setting.rounds == 25 else "")
        assert cells[0].paper == 96.3


def test_a_strange_method_name_breaks_no_format(tmp_path):
    make_run(tmp_path, "a&b_<i>%")
    (bench,) = benches(load_runs([tmp_path]).runs)
    table = tables.result_table(bench)
    assert "a\\&b\\_$<$i$>$\\%" in tables.to_latex(table)
    assert "a&amp;b_&lt;i&gt;%" in page(table)
    assert read(tables.to_csv(table))[0]["method"] == "a&b_<i>%"


def test_latex_is_balanced(bench):
    text = tables.to_latex(tables.result_table(bench))
    assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
    rows = [line for line in text.splitlines() if line.endswith("\\\\")]
    assert len({line.count(" & ") for line in rows}) == 1


def test_markdown_rows_have_the_same_number_of_cells(bench):
    lines = TEMPLATES.get_template("table.md.j2").render(table=tables.result_table(bench)).splitlines()
    assert len({line.count("|") for line in lines}) == 1


def test_variants_are_named_by_their_options(tmp_path):
    make_run(tmp_path)
    for beta in (0.5, 0.6, 0.7):
        make_run(tmp_path, options={"beta": beta, "scope": "global"})
    (bench,) = benches(load_runs([tmp_path]).runs)
    expected = ["default", *(f"beta={beta} scope=global" for beta in (0.5, 0.6, 0.7))]
    assert [row.name for row in tables.variant_table(bench).rows] == expected


def test_spreads_for_people():
    assert tick_bytes(3e6) == "3 MB"
    assert with_spread(Spread(97.123, 0.456, 3), 2) == "97.12 ± 0.46"
    assert with_spread(Spread(97.123, 0.001, 3), 2) == "97.12"
    assert with_spread(Spread(0.24, 0.012, 3), 1, " %", 100) == "24.0 ± 1.2 %"
    assert bytes_with_spread(Spread(6_240_000, 120_000, 3)) == "6.24 ± 0.12 MB"
    assert with_spread(Spread(float("nan"), None, 2), 2) == "not finite"
