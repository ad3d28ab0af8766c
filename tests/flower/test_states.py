"""`fedsparq states` lists what nodes keep on a machine, and removes what nobody needs any more."""

import fcntl
import os
import shutil
import threading
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from flwr.serverapp.strategy import FedAvg
from toy import client_app, model

from fedsparq import DiskStore
from fedsparq.cli.app import app
from fedsparq.errors import OptionError, RunError
from fedsparq.flower import Compressed, compress
from inprocess_grid import InProcessGrid


def test_states_are_listed_and_removed(tmp_path):
    for name in ("hospitals", "banks"):
        strategy = Compressed(FedAvg(fraction_evaluate=0.0), federation=name)
        grid = InProcessGrid([client_app(compress(state=tmp_path / "s"))] * 2)
        strategy.start(grid, model(), num_rounds=1, timeout=1)
    run = CliRunner()
    listed = run.invoke(app, ["states", "--folder", str(tmp_path / "s")], catch_exceptions=False)
    assert "federation-hospitals" in listed.output
    assert "federation-banks" in listed.output
    run.invoke(app, ["states", "--folder", str(tmp_path / "s"), "--remove", "federation-banks"], catch_exceptions=False)
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["federation-hospitals"]
    with pytest.raises(OptionError, match="no states of 'banks'"):
        run.invoke(app, ["states", "--folder", str(tmp_path / "s"), "--remove", "banks"], catch_exceptions=False)
    lock = next((tmp_path / "s").rglob("lock"))
    arguments = ["states", "--folder", str(tmp_path / "s"), "--remove", "federation-hospitals"]
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="a node is at work"):
            run.invoke(app, arguments, catch_exceptions=False)


def test_a_node_that_comes_while_its_state_is_removed_starts_anew_and_loses_no_lock(tmp_path, monkeypatch):
    """The lock is held until the folder is gone; who waited for it does not go on in a folder without a name."""
    folder = tmp_path / "federation-f" / "node-1" / "00"
    store, entered = DiskStore(folder), []
    with store.locked():
        pass

    def node() -> None:
        with store.locked():
            entered.append((folder / "lock").exists())

    def slowly(path) -> None:
        waiting = threading.Thread(target=node)
        waiting.start()
        waiting.join(0.3)
        assert not entered
        shutil.rmtree(path)
        waiters.append(waiting)

    waiters: list[threading.Thread] = []
    monkeypatch.setattr("fedsparq.cli.lists.shutil", SimpleNamespace(rmtree=slowly))
    CliRunner().invoke(app, ["states", "--folder", str(tmp_path), "--remove", "federation-f"], catch_exceptions=False)
    waiters[0].join(10)
    assert entered == [True]


def test_what_nodes_and_the_server_keep_is_their_owners_alone(tmp_path):
    before = os.umask(0o022)
    try:
        folders = {"federation": "f", "checkpoint": tmp_path / "all" / "server"}
        strategy = Compressed(FedAvg(fraction_evaluate=0.0), downlink="lattice", **folders)
        grid = InProcessGrid([client_app(compress(state=tmp_path / "all" / "nodes"))] * 2)
        strategy.start(grid, model(), num_rounds=2, timeout=1)
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for path in [tmp_path / "all", *(tmp_path / "all").rglob("*")]}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert len([path for path in modes if path.is_file()]) >= 8
