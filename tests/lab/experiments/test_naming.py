"""Folders by what differs, and runs in folders by their former names."""

from pathlib import Path

from fedsparq.lab.experiments.naming import differences, run_folder, run_name
from fedsparq.lab.specs import RunSpec, check


def spec(**changes: object) -> RunSpec:
    return check(RunSpec, changes)


def test_a_name_says_what_is_not_as_usual() -> None:
    usual = "mnist-mini-mlp-iid-fedsparq-seed0"
    assert run_name(spec()) == usual
    assert run_name(spec(rounds=2)) == f"{usual}-rounds=2"
    assert run_name(spec(training={"lr": 0.3}, clients=5)) == f"{usual}-clients=5-lr=0.3"
    assert run_name(spec(faults={"drop": 0.5}, server={"min_replies": 2})) == f"{usual}-min-replies=2-drop=0.5"
    assert run_name(spec(partition="dirichlet", alpha=0.1)) == "mnist-mini-mlp-dirichlet-0.1-fedsparq-seed0"
    assert run_name(spec(alpha=0.1)) == f"{usual}-alpha=0.1"
    assert run_name(spec(task="a.b:c", dataset="mnist")) == "a.b-c-fedsparq-seed0-dataset=mnist"


def test_no_two_settings_share_a_name() -> None:
    changes = [
        *({}, {"rounds": 1}, {"rounds": 2}, {"training": {"lr": 0.3}}, {"training": {"epochs": 2}}, {"clients": 4}),
        *({"fraction": 0.5}, {"train_limit": 100}, {"test_limit": 100}, {"note": "a"}, {"note": "b" * 300}),
        *({"note": "b" * 301}, {"client_budgets": {}}, {"engine": "flower-simulation"}, {"model_options": {"a": 1}}),
    ]
    names = [run_name(spec(**change)) for change in changes]
    assert len(set(names)) == len(names) - 1  # no budgets at all is as usual
    assert max(map(len, names)) <= 150


def test_a_run_under_its_former_name_is_found(tmp_path: Path) -> None:
    old = spec(rounds=3, training={"lr": 0.3})
    former = tmp_path / old.folder_name
    former.mkdir()
    (former / "spec.toml").write_text(old.to_toml().replace('task = "supervised"', 'task = "images"'))
    assert run_folder(tmp_path, old) == former
    other = spec(rounds=4, training={"lr": 0.3})
    assert run_folder(tmp_path, other) == tmp_path / run_name(other)
    (former / "spec.toml").write_text("not TOML")
    assert run_folder(tmp_path, old) == tmp_path / run_name(old)


def test_differences_are_told_key_by_key() -> None:
    changed = spec(training={"lr": 0.3}, options={"beta": 0.5})
    assert differences(spec(), changed) == {"training.lr": (0.1, 0.3), "options.beta": (None, 0.5)}
    assert differences(spec(), spec()) == {}
