"""Mod and strategy in Flower's own simulation, whose workers are processes of Ray's: states live in `Context.state`."""

import pytest
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from toy import client_app, model

from fedsparq.flower import Compressed, compress


@pytest.mark.slow
def test_states_survive_from_round_to_round_without_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "unused"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", "")
    strategy = Compressed(FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3), downlink="lattice")
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(grid, model(), num_rounds=4)

    run_simulation(
        server,
        client_app(compress("fedsparq")),
        num_supernodes=3,
        backend_config={
            "init_args": {"num_cpus": 2, "_node_ip_address": "127.0.0.1"},
            "client_resources": {"num_cpus": 1},
        },
    )
    assert [len(r.counted) for r in strategy.rounds] == [3, 3, 3, 3]
    assert not any(r.events for r in strategy.rounds)
    assert not (tmp_path / "unused").exists()
