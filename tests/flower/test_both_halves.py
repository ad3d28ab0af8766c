"""Methods with a half on each side, in a Flower app: the whole of them by FedSparQ, never around another strategy."""

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp.strategy import FedAvg
from toy import client_app, model

from fedsparq import DiskStore, OptionError, decode, method
from fedsparq.federate.messages import Reply
from fedsparq.flower import Compressed, FedSparQ, compress
from fedsparq.flower.records import unwrap
from flower_models import layout_of
from inprocess_grid import InProcessGrid

LAYOUT = layout_of(model())
WHOLE = ["ef21", "econtrol", "soteriafl", "fetchsgd", "sobaa"]


@pytest.mark.parametrize("name", WHOLE)
def test_another_strategy_is_refused(name):
    assert method(name).traits.requires_own_server
    with pytest.raises(OptionError, match=rf"{name}.* has a server of its own: use FedSparQ"):
        Compressed(FedAvg(), name)


@pytest.mark.parametrize("name", [*WHOLE, "demo", "sa-pef", "powersgd"])
def test_it_runs_in_an_app(name):
    strategy = FedSparQ(name)
    result = strategy.start(InProcessGrid([client_app(compress())] * 3), model(), num_rounds=3, timeout=1)
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    assert len(strategy.rounds) == 3


def test_shifts_stay_in_step_though_replies_are_lost(tmp_path):
    """The server's sum of shifts is that of the nodes, each of which moved only by what was acknowledged."""
    lost, count = {2, 5, 7}, iter(range(100))

    def fate(message: Message) -> Message | None:
        return None if next(count) in lost and unwrap(message.content["arrays"]) is not None else message

    strategy = FedSparQ("ef21", deadline=0.2)
    grid = InProcessGrid([client_app(compress(state=tmp_path))] * 3, fate=fate)
    strategy.start(grid, model(), num_rounds=5, timeout=0.2)
    held, counted = strategy._server.server.state, strategy.rounds[-1].counted
    (session,) = tmp_path.iterdir()
    total = np.zeros(LAYOUT.size)
    for node in (100, 101, 102):
        state = DiskStore(session / f"node-{node}" / f"{LAYOUT.digest:016x}").load(node - 100, LAYOUT).state
        total += state.compression.feedback["shift"]
        if node in counted:  # of its last reply it has not heard yet
            total += decode(Reply.decode(state.in_flight).blob, LAYOUT).dense()
    assert any(len(round.counted) < 3 for round in strategy.rounds)
    np.testing.assert_allclose(held.aggregator["total"], total, atol=1e-5)


def test_drift_correction_whose_state_no_app_can_use_is_refused():
    for runs in ([], ["drift-correction"]):
        with pytest.raises(OptionError, match="drift-correction"):
            FedSparQ("fedcomgate", runs=runs)
