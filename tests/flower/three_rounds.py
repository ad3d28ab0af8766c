"""Three rounds with `Compressed` on the grid in this process: what `test_versions.py` runs on each Flower."""

import json
import sys
from pathlib import Path

import flwr
import numpy as np
from flwr.serverapp.strategy import FedAvg

sys.path.insert(0, str(Path(__file__).parents[1]))

from toy import SHAPES, client_app, model, values

from fedsparq.flower import Compressed, FedSparQ, compress
from inprocess_grid import InProcessGrid


def final(strategy, *mods) -> tuple[dict, int]:
    grid = InProcessGrid([client_app(*mods)] * 3)
    result = strategy.start(grid, model(), num_rounds=3)
    return values(result.arrays), sum(grid.up.values())


expected, dense = final(FedAvg(fraction_evaluate=0.0))
exact, _ = final(Compressed(FedAvg(fraction_evaluate=0.0), "fedavg"), compress())
for name, value in expected.items():
    if name in SHAPES:  # Flower itself averages counters to fractions
        np.testing.assert_allclose(exact[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
_, small = final(Compressed(FedAvg(fraction_evaluate=0.0), "fedsparq", downlink="lattice"), compress())
own, _ = final(FedSparQ(fraction_evaluate=0.0), compress())
assert own.keys() == expected.keys()
print(json.dumps({"flwr": flwr.__version__, "dense": dense, "small": small}))
