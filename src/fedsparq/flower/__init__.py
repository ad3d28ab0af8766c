"""Two lines that make a Flower app's traffic small.

On the client: ``app = ClientApp(mods=[compress()])``. On the server: ``strategy = FedSparQ(FedAvg(...))``.
"""

import warnings

from fedsparq.errors import MissingExtraError

try:
    import flwr
except ImportError as error:
    raise MissingExtraError("fedsparq.flower needs Flower: pip install 'fedsparq[flower]'") from error
if tuple(int(part) for part in flwr.__version__.split(".")[:2]) < (1, 38):
    raise MissingExtraError(
        f"fedsparq.flower needs Flower 1.38 or newer, and this is {flwr.__version__}: pip install 'flwr>=1.38'"
    )

from fedsparq.flower.mod import compress
from fedsparq.flower.strategy import FedSparQ

Compressed = FedSparQ
"""The former name of `FedSparQ` around another strategy."""

if tuple(int(part) for part in flwr.__version__.split(".")[:2]) > (1, 42):
    warnings.warn(f"fedsparq.flower was tested with Flower 1.38 to 1.42, and this is {flwr.__version__}", stacklevel=2)

__all__ = ["Compressed", "FedSparQ", "compress"]
