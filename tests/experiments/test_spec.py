"""Specs: what is accepted, what is refused and with which words."""

import tomllib
from pathlib import Path

import pytest

from fedsparq.errors import OptionError
from fedsparq.experiments.reproduce import load_bundled, locate, plan
from fedsparq.experiments.spec import RunSpec, check, load_compare, load_run, merge, slug


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "spec.toml"
    path.write_text(text)
    return path


def test_comparison_is_methods_times_partitions_times_seeds(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        methods = ["fedavg", { name = "fedsparq", options = { multiplier = 2 } }]
        partitions = ["iid", "dirichlet"]
        seeds = [0, 1, 2]
        rounds = 4
        [training]
        lr = 0.2
        """,
    )
    runs = load_compare(path, {}).runs()
    assert len(runs) == 12
    assert len({run.folder_name for run in runs}) == 12
    assert {run.label for run in runs} == {"fedavg", "fedsparq multiplier=2.0"}
    assert all(run.rounds == 4 and run.training.lr == 0.2 for run in runs)


def test_command_line_overrides_the_spec(tmp_path: Path) -> None:
    path = write(
        tmp_path, 'methods = ["fedavg", "top-10"]\nseeds = [1, 2]\nrounds = 4\n[training]\nlr = 0.2\nepochs = 3'
    )
    overrides = {"method": "fedsparq", "options": {"beta": 0.5}, "seed": 9, "training": {"lr": 0.7}}
    (run,) = load_compare(path, overrides).runs()
    assert (run.method, run.options, run.seed, run.rounds) == ("fedsparq", {"beta": 0.5}, 9, 4)
    assert (run.training.lr, run.training.epochs) == (0.7, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rouns = 3", ["rouns", "no such key", "rounds"]),
        ("[training]\nlearning_rate = 3", ["training.learning_rate", "no such key", "lr"]),
        ("rounds = 0", ["rounds", "greater than or equal to 1", "got 0"]),
        ("fraction = 1.5", ["fraction", "less than or equal to 1"]),
        ('partition = "skewed"', ["partition", "iid", "dirichlet"]),
        ('method = "fedsqarq"', ["fedsqarq", "fedsparq"]),
        ("options = { betta = 1 }", ["betta", "beta"]),
        ("options = { beta = 1.5 }", ["beta=1.5", "below 1"]),
        ('[server]\nnorm_limit = "tall"', ["norm_limit", "tall", "3x median"]),
        ("rounds = ", ["spec.toml", "not TOML"]),
        ('budget = "20 kB"', ["budget", "no option"]),
        ('method = "fedsparq-adaptive"\nbudget = "20 bits"', ["20 bits", "20 kB"]),
        ('method = "fedsparq-adaptive"\nbudget = "20 B"', ["too small"]),
        ('method = "fedsparq-adaptive"\nclient_budgets = { 7 = "1 kB" }', ["client 7", "0 to 2"]),
    ],
)
def test_a_wrong_spec_gets_one_sentence(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        load_run(write(tmp_path, text), {})
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_missing_spec_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"nowhere\.toml"):
        load_run(tmp_path / "nowhere.toml", {})
    with pytest.raises(OptionError, match="quickstart"):
        locate("nowhere")


def test_resolved_spec_reads_back_the_same() -> None:
    spec = RunSpec(method="fedsparq", options={"multiplier": 2}, partition="dirichlet", downlink="fedsparq", clients=7)
    assert check(RunSpec, tomllib.loads(spec.to_toml())) == spec


def test_labels_name_what_is_unusual() -> None:
    assert RunSpec(method="fedsparq", options={"beta": 0.9}).label == "fedsparq"
    assert RunSpec(method="fedsparq", options={"beta": 0.5}).label == "fedsparq beta=0.5"
    assert RunSpec(downlink="top-10").label == "fedsparq / down: top-10"
    assert RunSpec(partition="dirichlet", alpha=0.1).partition_label == "dirichlet(0.1)"
    assert slug("a b/c(0.5)") == "a-b-c-0.5"


def test_tables_merge_key_by_key() -> None:
    assert merge({"a": 1, "t": {"x": 1, "y": 2}}, {"t": {"y": 3}}) == {"a": 1, "t": {"x": 1, "y": 3}}


def test_every_bundled_spec_is_sound() -> None:
    folder = locate("quickstart").parent
    for path in folder.glob("*.toml"):
        assert load_compare(path, {}).runs(), path.name


def test_reproduction_is_the_papers_experiments() -> None:
    small, full = plan(None, "small", None), plan(None, "full", 1)
    methods = {"fedavg", "float16", "fedpaq", "random-10", "top-10", "fedsparq"}
    for runs in (small, full):
        assert {run.dataset for run in runs} == {"mnist", "fashion-mnist", "cifar10"}
        assert methods <= {run.label for run in runs}
        assert all(run.clients == 3 and run.fraction == 1 for run in runs)
    cifar = [run for run in full if run.dataset == "cifar10"]
    assert {(run.model, run.rounds, run.train_limit) for run in cifar} == {("resnet18", 100, None)}
    assert all(run.note for run in small if run.dataset == "cifar10")
    assert {run.seed for run in small if run.dataset == "mnist"} == {0, 1, 2}
    assert {run.dataset for run in plan("fmnist", "small", 1)} == {"fashion-mnist"}


def test_hyperparameters_are_the_same_for_all_methods_of_a_data_set() -> None:
    for name in ("mnist", "fmnist", "cifar10", "cifar10-small"):
        assert len({run.training for run in load_bundled(name)}) == 1


def test_a_folder_of_the_same_name_does_not_hide_a_spec(tmp_path, monkeypatch):
    (tmp_path / "frontier").mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate("frontier").is_file()
