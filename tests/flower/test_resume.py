"""The ServerApp may be killed at any moment: the next one goes on, and nothing that counted is lost."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg
from resumable import INNER, ROBUST, ROUNDS, Killed, apps, play, strategy
from toy import SHAPES, client_app, model, values

from fedsparq import DiskStore, OptionError, decode
from fedsparq.errors import RunError
from fedsparq.federate.messages import Reply
from fedsparq.flower import Compressed, FedSparQ, compress
from flower_models import layout_of
from inprocess_grid import InProcessGrid


def die() -> None:
    raise Killed


def whole(folder: Path, kind: str, moments: list[int], deltas: dict | None = None):
    """A run that dies at each of these moments, counted anew after each death, and ends at last."""
    for moment in [*moments, 0]:
        try:
            return play(kind, folder, moment, die, deltas)[0]
        except Killed:
            continue
    raise AssertionError("it never ended")


@pytest.mark.parametrize("kind", [*INNER, "own", *ROBUST])
def test_killed_at_five_random_moments_and_resumed_the_model_is_the_unbroken_runs(kind, tmp_path):
    expected, grid = play(kind, tmp_path / "unbroken", 0, die)
    rng = random.Random(sum(map(ord, kind)))
    moments = [rng.randint(1, grid.moment // 2) for _ in range(5)]
    got = whole(tmp_path / "broken", kind, moments)
    assert list(got) == list(expected)
    for name, value in values(got).items():
        np.testing.assert_array_equal(value, expected[name].numpy(), err_msg=f"{name} {moments}")


def test_killed_at_every_moment_of_a_round_conservation_holds(tmp_path):
    """For each node: all it learned = what the server counted + what it still owes. Each death is at another step."""
    _, grid = play("fedavg", tmp_path / "unbroken", 0, die)
    expected, _ = play("fedavg", tmp_path / "unbroken-2", 0, die)
    for moment in range(1, grid.moment, 3):
        got = whole(tmp_path / f"at-{moment}", "fedavg", [moment])
        for name, value in values(got).items():
            np.testing.assert_array_equal(value, expected[name].numpy(), err_msg=f"{name} {moment}")


def test_what_nodes_learned_is_counted_once_or_still_owed(tmp_path):
    """One node, plain averaging: the model has moved by exactly what the node does not owe any more."""
    deltas: dict[int, list] = {}
    app = client_app(compress(state=tmp_path / "nodes"), deltas=deltas)
    start, layout = model(), layout_of(model())

    def make():
        inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
        return Compressed(inner, checkpoint=tmp_path / "server", federation="one")

    calls = iter(range(1000))
    lost = {1, 4}

    def fate(reply):
        number = next(calls)
        if number in (2, 5):
            raise Killed
        return None if number in lost else reply

    for _ in range(3):
        try:
            result = make().start(InProcessGrid([app], fate=fate), start, num_rounds=6, timeout=0.01)
        except Killed:
            continue
    store = DiskStore(tmp_path / "nodes" / "federation-one" / "node-100" / f"{layout.digest:016x}")
    state = store.load(0, layout).state
    moved = np.concatenate([(result.arrays[t.name].numpy() - start[t.name].numpy()).ravel() for t in layout.tensors])
    (last,) = state.undecided
    assert Reply.decode(last).round == state.round
    np.testing.assert_allclose(moved + state.compression.residual, np.sum(deltas[0], axis=0), atol=3e-5)
    assert decode(Reply.decode(last).blob, layout).kept > 0


def test_a_new_run_with_more_rounds_goes_on_and_finds_its_residuals(tmp_path, caplog):
    folder = tmp_path / "server"
    seen: list = []

    class Watching(FedAvg):
        def __init__(self) -> None:
            super().__init__(fraction_evaluate=0.0)

        def configure_train(self, server_round, arrays, config, grid):
            seen.append(server_round)
            return super().configure_train(server_round, arrays, config, grid)

        def state_dict(self):
            return {"seen": len(seen)}

        def load_state_dict(self, state) -> None:
            assert state["seen"] == 3

    metrics: list[int] = []
    for rounds in (3, 5, 5):
        strategy = Compressed(Watching(), checkpoint=folder, federation="f")
        grid = InProcessGrid([client_app(compress(state=tmp_path / "nodes"))] * 3)
        for context in grid.contexts.values():
            context.run_id = rounds
        if rounds == 5 and seen == [1, 2, 3, 4, 5]:
            seen.extend(())
            Watching.load_state_dict = lambda self, state: None
        result = strategy.start(grid, model(), num_rounds=rounds, timeout=1, evaluate_fn=lambda n, a: metrics.append(n))
        assert not any("residual lost" in event.reason for r in strategy.rounds for event in r.events)
    assert "no node of the checkpoint" not in caplog.text
    assert seen == [1, 2, 3, 4, 5]
    assert metrics == [0, 1, 2, 3, 3, 4, 5]
    assert len(result.arrays) == len(model())
    assert len(list((tmp_path / "nodes").iterdir())) == 1


def test_a_run_that_goes_on_without_any_of_its_nodes_says_what_is_missing(tmp_path, caplog):
    """A simulation draws new node ids for each run, so that nobody has the residuals."""
    strategy("own", tmp_path).start(InProcessGrid(apps(tmp_path, "own")), model(), num_rounds=2, timeout=1)
    grid = InProcessGrid(apps(tmp_path, "own") * 2)
    for node in (100, 101, 102):
        del grid.apps[node], grid.contexts[node]
    strategy("own", tmp_path).start(grid, model(), num_rounds=5, timeout=1)
    assert caplog.text.count("no node of the checkpoint takes part") == 1


def test_unknown_strategies_and_nameless_federations_are_refused_at_construction(tmp_path):
    class Mine(FedAvg):
        pass

    with pytest.raises(OptionError, match=r"what Mine remembers .* state_dict\(\) and load_state_dict\(state\)"):
        Compressed(Mine(), checkpoint=tmp_path, federation="f")
    with pytest.raises(OptionError, match="needs the name of the federation"):
        FedSparQ(checkpoint=tmp_path)
    with pytest.raises(OptionError, match="a name has letters"):
        Compressed(FedAvg(), federation="../f")


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    play("fedavg", tmp_path, 0, die)
    with pytest.raises(RunError, match=r"is of .*FedAvg, this strategy is .*FedAdam"):
        Compressed(INNER["fedadam"](), checkpoint=tmp_path / "server", federation="hospitals").start(
            InProcessGrid(apps(tmp_path, "fedavg")), model(), num_rounds=9, timeout=1
        )
    with pytest.raises(RunError, match="is of the method"):
        Compressed(INNER["fedavg"](), "stc", checkpoint=tmp_path / "server", federation="hospitals").start(
            InProcessGrid(apps(tmp_path, "fedavg")), model(), num_rounds=9, timeout=1
        )


def test_files_are_the_owners_alone(tmp_path):
    play("fedavg", tmp_path, 0, die)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 6
    assert {oct(path.stat().st_mode & 0o777) for path in files if path.suffix == ".safetensors"} == {"0o600"}


def test_an_older_checkpoint_goes_on_although_nodes_are_ahead(tmp_path):
    """An operator who goes back to a backup: nodes say how far they are, and the rounds after that count again."""
    kept = tmp_path / "backup"
    first = strategy("fedavg", tmp_path)
    first.start(InProcessGrid(apps(tmp_path, "fedavg")), model(), num_rounds=2, timeout=1)
    kept.write_bytes((tmp_path / "server" / "server.safetensors").read_bytes())
    second = strategy("fedavg", tmp_path)
    second.start(InProcessGrid(apps(tmp_path, "fedavg")), model(), num_rounds=4, timeout=1)
    (tmp_path / "server" / "server.safetensors").write_bytes(kept.read_bytes())
    third = strategy("fedavg", tmp_path)
    third.start(InProcessGrid(apps(tmp_path, "fedavg")), model(), num_rounds=8, timeout=1)
    assert len(third.rounds[-1].counted) == 2


@pytest.mark.parametrize("kind", ["fedadam"])
def test_killed_by_the_kernel_and_resumed(kind, tmp_path):
    expected, grid = play(kind, tmp_path / "unbroken", 0, die)
    program = Path(__file__).parent / "resumable.py"
    rng, environment = random.Random(7), {**os.environ, "FLWR_TELEMETRY_ENABLED": "0"}
    codes = []
    for moment in [rng.randint(1, grid.moment // 2) for _ in range(2)] + [0]:
        command = [sys.executable, str(program), kind, str(tmp_path / "broken"), str(moment), str(tmp_path / "out.npz")]
        codes.append(subprocess.run(command, env=environment, capture_output=True, check=False).returncode)
    assert codes == [-9, -9, 0]
    got = np.load(tmp_path / "out.npz")
    assert set(SHAPES) < set(got.files)
    for name in expected:
        np.testing.assert_array_equal(got[name], expected[name].numpy(), err_msg=name)
    assert ROUNDS == 6
