"""Aggregators for hostile nodes, by name, in our own strategy. That they resume is in `test_resume.py`."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message
from toy import client_app, model, step, values

from fedsparq import OptionError
from fedsparq.flower import FedSparQ, compress
from inprocess_grid import InProcessGrid

NODES, HOSTILE = 6, 4


def backwards(message: Message, context: Context, call_next) -> Message:
    """One node sends twenty times its update, the wrong way."""
    before = values(message.content["arrays"])
    reply = call_next(message, context)
    if context.node_config["partition-id"] == HOSTILE:
        after = values(reply.content["arrays"])
        moved = {n: before[n] - 20 * (after[n] - before[n]) if _trained(n) else after[n] for n in after}
        reply.content["arrays"] = ArrayRecord({n: Array(value.astype(after[n].dtype)) for n, value in moved.items()})
    return reply


def after_one_round(**options) -> dict[str, np.ndarray]:
    grid = InProcessGrid([client_app(compress(), backwards)] * NODES)
    return values(FedSparQ("fedavg", **options).start(grid, model(), num_rounds=1, timeout=1).arrays)


def test_the_robust_mean_is_that_of_the_honest_nodes():
    """`fedavg` is lossless and weighs by examples, 10 more for each node; so does the rule that takes its place."""
    trained = [step(model(), node) for node in range(NODES)]
    honest = [node for node in range(NODES) if node != HOSTILE]
    got, fooled = after_one_round(aggregator="robust"), after_one_round()
    for name in filter(_trained, got):
        expected = np.average([trained[n][name] for n in honest], axis=0, weights=[10 * (n + 1) for n in honest])
        np.testing.assert_allclose(got[name], expected, atol=1e-5, err_msg=name)
        assert np.abs(fooled[name] - expected).max() > 0.5


def test_a_rule_that_is_not_for_sparse_updates_or_not_known_is_refused_at_construction():
    with pytest.raises(OptionError, match=r"Take the aggregator .robust."):
        FedSparQ("fedsparq", aggregator="coordinate-median")
    with pytest.raises(OptionError, match="robustt"):
        FedSparQ("fedsparq", aggregator="robustt")


def _trained(name: str) -> bool:
    return name.startswith(("conv", "fc"))
