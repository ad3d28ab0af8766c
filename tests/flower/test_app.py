"""The ready app: any experiment over real nodes, here over the in-process grid, gives what the local engine gives."""

import tomllib

import pytest
from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict
from safetensors.numpy import load_file

from fedsparq.errors import OptionError
from fedsparq.lab.experiments.deploy import write_app
from fedsparq.lab.experiments.flower_app import client_app, server_app, spec_of
from fedsparq.lab.experiments.run import run
from fedsparq.lab.specs import RunSpec
from inprocess_grid import InProcessGrid

SPEC = RunSpec(clients=3, rounds=2, train_limit=300, test_limit=100, options={"multiplier": 1.5}, downlink="lattice")


def config_of(folder) -> dict:
    """The run's configuration as Flower hands it to the apps."""
    return flatten_dict(tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])


def test_a_spec_survives_the_way_through_flowers_configuration(tmp_path):
    assert spec_of(config_of(write_app(SPEC, tmp_path / "app"))) == SPEC


def test_the_deployed_experiment_is_the_local_one(tmp_path):
    config = config_of(write_app(SPEC, tmp_path / "app", out=str(tmp_path / "deployed")))
    grid = InProcessGrid([client_app] * 3, node_config={"fedsparq-state": str(tmp_path / "states")})
    for context in grid.contexts.values():
        context.run_config = config
    server_app(grid, Context(1, 1, {}, RecordDict(), config))
    run(SPEC, tmp_path / "local")
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("local", "deployed"))
    assert all((one[name] == other[name]).all() for name in one)
    assert len(list((tmp_path / "states" / "run-1").glob("client-*/*.safetensors"))) >= 3


def test_nodes_must_say_which_part_is_theirs(tmp_path):
    config = config_of(write_app(SPEC, tmp_path / "app", out=str(tmp_path / "deployed")))
    grid = InProcessGrid([client_app] * 3)
    grid.contexts[101].node_config["partition-id"] = 0
    with pytest.raises(OptionError, match="two SuperNodes have partition-id=0"):
        server_app(grid, Context(1, 1, {}, RecordDict(), config))
    del grid.contexts[101].node_config["partition-id"]
    with pytest.raises(OptionError, match="does not say which part of the data"):
        server_app(grid, Context(1, 1, {}, RecordDict(), config))


def test_bad_configurations_are_named(tmp_path):
    with pytest.raises(OptionError, match="the run's configuration: colour: there is no such key"):
        spec_of({"colour": "red"})
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'mine'\n")
    with pytest.raises(OptionError, match="another project's"):
        write_app(SPEC, tmp_path)
    with pytest.raises(OptionError, match="faults are made by the engines"):
        write_app(RunSpec(faults={"drop": 0.5}), tmp_path / "app")
