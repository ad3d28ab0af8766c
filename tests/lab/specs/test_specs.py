"""Specs: what is accepted, what is refused and with which words."""

import tomllib
from pathlib import Path

import pytest

from fedsparq.errors import OptionError
from fedsparq.lab.settings import merge, slug
from fedsparq.lab.specs import RunSpec, check, load_bundled, load_compare, load_run, locate
from fedsparq.optimize import Adam


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
        ("[training]\nlearning_rate = 3", ["training", "no option 'learning_rate'", "lr=0.1"]),
        ("[server]\ndeadlin = 3", ["server.deadlin", "no such key", "deadline"]),
        ("[training]\nlr = 0", ["training", "lr=0", "greater than 0"]),
        ("[server]\nmin_replies = 0", ["server", "min_replies=0", "at least 1"]),
        ("[server]\nmin_replies = 4", ["min_replies=4", "3 clients"]),
        ("rounds = 0", ["rounds", "greater than or equal to 1", "got 0"]),
        ("fraction = 1.5", ["fraction", "less than or equal to 1"]),
        ('partition = "skewed"', ["partition", "iid", "dirichlet"]),
        ('method = "fedsqarq"', ["fedsqarq", "fedsparq"]),
        ('method = "nowhere:make"', ["nowhere:make", "cannot import"]),
        ('optimizer = "adma"', ["optimizer", "adma", "adam"]),
        ('aggregator = "median_of_all"', ["aggregator", "median_of_all", "mean"]),
        ("optimizer_options = { lr = 0.1 }", ["optimizer_options", "no optimizer"]),
        ("options = { betta = 1 }", ["betta", "beta"]),
        ("options = { beta = 1.5 }", ["beta=1.5", "less than 1"]),
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
    spec = RunSpec(method="fedsparq", options={"multiplier": 2}, partition="dirichlet", downlink="lattice", clients=7)
    assert check(RunSpec, tomllib.loads(spec.to_toml())) == spec


def test_labels_name_what_is_unusual() -> None:
    assert RunSpec(method="fedsparq", options={"beta": 0.9}).label == "fedsparq"
    assert RunSpec(method="fedsparq", options={"beta": 0.5}).label == "fedsparq beta=0.5"
    assert RunSpec(downlink="lattice").label == "fedsparq / down: lattice"
    assert RunSpec(method="fedsparq-adaptive", downlink="lattice").label == "fedsparq-adaptive"
    assert RunSpec(method="fedsparq-adaptive", downlink="none").label == "fedsparq-adaptive / down: none"
    assert RunSpec(partition="dirichlet", alpha=0.1).partition_label == "dirichlet(0.1)"
    assert slug("a b/c(0.5)") == "a-b-c-0.5"


OLD = """
method = "fedsparq"
dataset = "mnist-mini"
model = "mlp"
partition = "dirichlet"
alpha = 0.5
shards_per_client = 2
clients = 7
fraction = 1.0
rounds = 10
seed = 0
downlink = "fedsparq"
budget = ""
acknowledge = true
engine = "local"
note = ""
variant = ""

[options]
multiplier = 2

[model_options]

[downlink_options]

[client_budgets]

[training]
lr = 0.1
momentum = 0.0
weight_decay = 0.0
epochs = 1
batch_size = 32

[server]
min_replies = 1
norm_limit = "off"
examples_limit = "off"

[faults]
drop = 0.0
hostile_kinds = ["random", "nan", "scale", "replay"]
hostile_scale = 100.0
"""


def test_a_resolved_spec_of_the_first_version_is_still_read() -> None:
    with pytest.raises(OptionError, match="lattice"):
        check(RunSpec, tomllib.loads(OLD))
    spec = check(RunSpec, tomllib.loads(OLD) | {"downlink": "lattice"})
    assert spec == RunSpec(
        method="fedsparq", options={"multiplier": 2}, partition="dirichlet", downlink="lattice", clients=7
    )
    assert spec.folder_name == "mnist-mini-mlp-dirichlet-0.5-fedsparq-multiplier=2.0-down-lattice-seed0"


def test_parts_of_the_server_are_replaced_alone() -> None:
    plain, spec = RunSpec(), RunSpec(optimizer="adam", optimizer_options={"lr": 0.1})
    assert spec.label == "fedsparq, optimizer adam lr=0.1"
    assert spec.chosen_method().optimizer == Adam(lr=0.1)
    assert spec.chosen_method().aggregator == plain.chosen_method().aggregator
    assert spec.chosen_method().identity == plain.chosen_method().identity
    both = RunSpec(
        aggregator="mean", aggregator_options={"weighting": "examples"}, optimizer="step", downlink="lattice"
    )
    assert both.label == "fedsparq, aggregator mean weighting=examples, optimizer step / down: lattice"
    assert both.chosen_method().aggregator.weighting == "examples"
    assert check(RunSpec, tomllib.loads(both.to_toml())) == both


def test_a_comparison_of_server_parts(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        methods = ["fedsparq", { name = "fedsparq", optimizer = "adam" }]
        """,
    )
    assert [run.label for run in load_compare(path, {}).runs()] == ["fedsparq", "fedsparq, optimizer adam"]


def test_a_users_own_method_and_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_a_user.py").write_text(
        "import fedsparq\n"
        "def quarter(fraction: float = 0.25):\n"
        "    return fedsparq.method('top-10', fraction=fraction)\n"
    )
    monkeypatch.chdir(tmp_path)
    spec = load_run(
        write(tmp_path, 'method = "of_a_user:quarter"\noptions = { fraction = 0.5 }\ntask = "of_a_user:words"'), {}
    )
    assert spec.chosen_method().name == "of_a_user:quarter"
    assert spec.label == "of_a_user:quarter fraction=0.5"
    assert spec.folder_name == "of-a-user-words-of-a-user-quarter-fraction=0.5-seed0"
    assert RunSpec(task="a.b:c", task_options={"size": 3}).folder_name == "a.b-c-size=3-fedsparq-seed0"


def test_tables_merge_key_by_key() -> None:
    assert merge({"a": 1, "t": {"x": 1, "y": 2}}, {"t": {"y": 3}}) == {"a": 1, "t": {"x": 1, "y": 3}}


def test_every_bundled_spec_is_sound() -> None:
    folder = locate("quickstart").parent
    for path in folder.glob("*.toml"):
        assert load_compare(path, {}).runs(), path.name


def test_hyperparameters_are_the_same_for_all_methods_of_a_data_set() -> None:
    for name in ("mnist", "fmnist", "cifar10", "cifar10-small"):
        assert len({run.training for run in load_bundled(name)}) == 1


def test_a_folder_of_the_same_name_does_not_hide_a_spec(tmp_path, monkeypatch):
    (tmp_path / "frontier").mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate("frontier").is_file()


def test_the_usual_model_follows_from_the_data_set() -> None:
    assert RunSpec().model == RunSpec(dataset="./flowers").model == "mlp"
    assert RunSpec(dataset="shakespeare").model == "char-lstm"
    assert RunSpec(dataset="shakespeare", model="char-transformer").model == "char-transformer"
    text = RunSpec(dataset="shakespeare", partition="natural")
    assert check(RunSpec, tomllib.loads(text.to_toml())) == text
    assert text.folder_name == "shakespeare-char-lstm-natural-fedsparq-seed0"


def test_the_task_of_earlier_specs_has_another_name() -> None:
    assert RunSpec(task="images") == RunSpec(task="supervised") == RunSpec()
    assert RunSpec(precision="float32") == RunSpec()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('device = "gpu"', ["device", "'auto', 'cpu', 'cuda' or 'mps'", "gpu"]),
        ('precision = "bfloat16"', ["precision", "no such key"]),
        ('augment = "rotate"', ["augment", "'off' or 'crop-flip'"]),
        ("window = 0", ["window", "greater than or equal to 1"]),
    ],
)
def test_devices_and_data_have_few_choices(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        load_run(write(tmp_path, text), {})
    assert all(word in str(caught.value) for word in words), caught.value


def test_settings_of_training_and_privacy_may_stand_at_the_top(tmp_path: Path) -> None:
    spec = load_run(write(tmp_path, "lr = 0.3\nmethod = 'fedavg'\nepsilon = 8\n[training]\nbatch_size = 8\n"), {})
    assert (spec.training.lr, spec.training.batch_size, spec.privacy.epsilon) == (0.3, 8, 8.0)
    assert load_run(write(tmp_path, "lr = 0.3\n"), {"training": {"lr": 0.5}}).training.lr == 0.5
    path = write(tmp_path, "methods = ['fedavg']\nlr = 0.3\naxes = [[{ lr = 0.1 }, { epochs = 2 }]]\n")
    assert [(run.training.lr, run.training.epochs) for run in load_compare(path, {}).runs()] == [(0.1, 1), (0.3, 2)]
    with pytest.raises(OptionError, match="lr"):
        load_run(write(tmp_path, "lr = 0.3\n[training]\nlr = 0.3\n"), {})


@pytest.mark.parametrize("text", ["rounds = true", "rounds = '3'", "alpha = true", "[faults]\ndrop = true"])
def test_only_numbers_are_numbers(tmp_path: Path, text: str) -> None:
    with pytest.raises(OptionError):
        load_run(write(tmp_path, text), {})
