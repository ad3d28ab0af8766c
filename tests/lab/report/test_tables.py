import io
import json
from fractions import Fraction
from itertools import product

import pytest
from rich.console import Console

from fedsparq.lab.report import tables
from fedsparq.lab.report.page import TEMPLATES, write_report
from fedsparq.lab.report.tables import MEAN, NO_ATTACK, attack_table, bytes_with_spread, print_tables, with_spread
from fedsparq.lab.results import Results, Spread
from made_runs import make_run

METHODS, RULES, ATTACKS = ("fedavg", "fedsparq"), ("", "robust", "multi-krum"), ("", "sign-flip", "backdoor")


def only(root):
    (found,) = Results.read([root]).comparisons()
    return found


@pytest.fixture
def folders(tmp_path):
    return {
        (method, seed): make_run(tmp_path, method, "fmnist", "dirichlet(0.5)", seed)
        for method in ("fedavg", "fedsparq")
        for seed in (range(3) if method == "fedsparq" else range(1))
    }


def last(folder):
    return json.loads(folder.joinpath("rounds.jsonl").read_text().splitlines()[-1])


def page(table):
    return TEMPLATES.get_template("table.html.j2").render(table=table, number=0)


def test_means_agree_with_the_rounds(folders, tmp_path):
    rows = {row.label: row for row in tables.result_table(only(tmp_path)).rows}
    assert rows["fedavg"].cells[0].value.mean == last(folders["fedavg", 0])["accuracy"]
    ends = [Fraction(last(folders["fedsparq", seed])["accuracy"]) for seed in range(3)]
    assert rows["fedsparq"].cells[0].value.mean == pytest.approx(float(sum(ends) / 3), rel=1e-15)
    assert rows["fedsparq"].seeds == [0, 1, 2]


def test_the_page_has_mean_spread_and_the_best_in_bold_and_with_the_paper_its_values(folders, tmp_path):
    comparison = only(tmp_path)
    plain, table = tables.result_table(comparison), tables.result_table(comparison, paper=True)
    ours = comparison.spread("fedsparq", "accuracy")
    assert f"{ours.mean:.2f} ± {ours.std:.2f}" in page(plain)
    assert "paper 87.26" not in page(plain)
    assert "<small>paper 87.26</small>" in page(table)
    assert {"robust1", "robust2", "upload_bytes_paper"} == {m.key for m in table.measures} - {
        m.key for m in plain.measures
    }
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
    bold = {row.label: row.cells[0].best for row in tables.result_table(only(tmp_path)).rows}
    assert bold == {"fedavg": True, "top-10": True, "random-10": False}


def test_fedavg_always_reaches_its_own_accuracy_and_others_are_counted_by_seed(tmp_path):
    for seed, reach in enumerate((1.0, 0.8, 0.9)):
        make_run(tmp_path, "fedavg", seed=seed, reach=reach)
        make_run(tmp_path, "top-10", seed=seed, reach=1.0 if seed == 1 else 0.7)
        make_run(tmp_path, "random-10", seed=seed, reach=0.5)
    table = tables.result_table(only(tmp_path))
    column = [measure.key for measure in table.measures].index("reach_bytes")
    texts = {row.label: row.cells[column].text for row in table.rows}
    assert "MB" in texts["fedavg"]
    assert texts["top-10"] == "1 of 3 seeds"
    assert texts["random-10"] == "not reached"


def test_paper_bytes_are_next_to_ours_only_for_the_same_number_of_rounds(tmp_path):
    for rounds in (25, 5):
        make_run(tmp_path / str(rounds), "fedsparq", rounds=rounds)
    for comparison in Results.read([tmp_path]).comparisons():
        table = tables.result_table(comparison, paper=True)
        cell = table.rows[0].cells[table.measures.index(tables.PAPER_UP)]
        assert cell.paper_text == ("624 kB, its chart 6.24 MB" if comparison.setting.rounds == 25 else "")
        assert table.rows[0].cells[0].paper_text == "96.3"


def test_a_strange_method_name_breaks_no_format(tmp_path):
    make_run(tmp_path, "a&b_<i>%")
    table = tables.result_table(only(tmp_path))
    assert "a\\&b\\_$<$i$>$\\%" in tables.to_latex(table)
    assert "a&amp;b_&lt;i&gt;%" in page(table)


def test_latex_is_balanced(folders, tmp_path):
    text = tables.to_latex(tables.result_table(only(tmp_path), paper=True))
    assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
    rows = [line for line in text.splitlines() if line.endswith("\\\\")]
    assert len({line.count(" & ") for line in rows}) == 1


def attacked(root, success=88.0):
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
        found[method, rule or MEAN, attack or NO_ATTACK] = lines[-1]["accuracy"]
    return found


def test_the_table_of_attacks_holds_every_run(tmp_path):
    accuracies = attacked(tmp_path)
    table = attack_table(only(tmp_path))
    assert [measure.title for measure in table.measures] == [NO_ATTACK, "backdoor", "sign-flip", "backdoor's success %"]
    names = [f"{method}, {rule}" for method in ("FedAvg", "FedSparQ") for rule in (MEAN, "robust", "multi-krum")]
    assert [row.name for row in table.rows] == names
    for row in table.rows:
        rule = row.name.partition(", ")[2]
        expected = [accuracies[row.label, rule, attack] for attack in (NO_ATTACK, "backdoor", "sign-flip")]
        assert [cell.value.mean for cell in row.cells] == pytest.approx([*expected, 88.0])
    shades = [cell.lost for cell in table.rows[1].cells[:3]]
    assert shades == sorted(shades, reverse=True) or len(set(shades)) > 1
    assert page(table).count("data-lost") == 18


def test_attacks_that_were_not_run_stay_empty_and_without_any_there_is_no_table(tmp_path):
    attacked(tmp_path)
    for path in tmp_path.glob("*fedsparq-aggregator-robust-attack-sign-flip*/*"):
        path.unlink()
    (row,) = [row for row in attack_table(only(tmp_path)).rows if row.name == "FedSparQ, robust"]
    assert [cell.text for cell in row.cells].count("–") == 1
    make_run(tmp_path / "plain", "fedavg")
    assert attack_table(only(tmp_path / "plain")) is None


def test_variants_are_their_own_table(tmp_path):
    make_run(tmp_path)
    for beta in (0.5, 0.6, 0.7):
        make_run(tmp_path, options={"beta": beta, "scope": "global"})
    expected = ["fedsparq", *(f"fedsparq beta={beta} scope=global" for beta in (0.5, 0.6, 0.7))]
    assert [row.label for row in tables.variant_table(only(tmp_path)).rows] == expected


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("option", ["", "residual-of-layers=kept-only"])
def test_the_terminal_table_has_up_down_and_both_in_80_columns_and_breaks_no_name(tmp_path, seeds, option):
    for method in ("fedavg", "fedsparq-adaptive", "fedpaq"):
        for seed in range(seeds):
            make_run(tmp_path, method, seed=seed, rounds=2, options={"a": option} if option else None)
    out = io.StringIO()
    print_tables(Results.read([tmp_path]), Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert all(word in out.getvalue() for word in ("up", "down", "both", "fedsparq-adaptive", option))
    comparison = only(tmp_path)
    for label in comparison.labels:
        (line,) = [line for line in lines if line.strip().startswith(f"{label.split(' ')[0]} ")]
        assert f"{comparison.mean(label, 'accuracy'):.2f}" in line
        assert "B " in line


def test_spreads_for_people():
    assert with_spread(Spread(97.123, 0.456, 3), 2) == "97.12 ± 0.46"
    assert with_spread(Spread(97.123, 0.001, 3), 2) == "97.12"
    assert with_spread(Spread(0.24, 0.012, 3), 1, " %", 100) == "24.0 ± 1.2 %"
    assert bytes_with_spread(Spread(6_240_000, 120_000, 3)) == "6.24 ± 0.12 MB"
    assert with_spread(Spread(float("nan"), float("nan"), 2), 2) == "not finite"


def test_beside_epsilon_stands_which_figures_it_does_not_cover(tmp_path):
    """On the page and in the terminal, for private runs alone."""
    texts = []
    for name, epsilon in (("plain", None), ("private", 3.75)):
        folder = make_run(tmp_path / name, rounds=2)
        lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        told = [line | ({} if epsilon is None else {"epsilon": epsilon * line["round"] / 2}) for line in lines]
        (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
        out = io.StringIO()
        print_tables(Results.read([folder]), Console(file=out, width=200))
        write_report([folder], tmp_path / "page.html")
        texts.append((out.getvalue(), (tmp_path / "page.html").read_text()))
    for plain, private in zip(*texts, strict=True):
        assert "epsilon 3.75" not in plain
        (line,) = [line for line in private.splitlines() if "epsilon 3.75" in line]
        for figure in ("bytes", "clients", "coordinates", "labels"):
            assert figure in line.split("epsilon 3.75")[1]
