"""Two lines that make a Flower app's traffic small.

On the client: ``@app.train(mods=[compress("fedsparq")])``. On the server: ``strategy = Compressed(FedAvg(...))``.
"""

from fedsparq.errors import MissingExtraError

try:
    import flwr
except ImportError as error:
    raise MissingExtraError("fedsparq.flower needs Flower: pip install 'fedsparq[flower]'") from error
if not (1, 38) <= tuple(int(part) for part in flwr.__version__.split(".")[:2]) <= (1, 42):
    raise MissingExtraError(
        f"fedsparq.flower works with Flower 1.38 to 1.42, and this is {flwr.__version__}: "
        "pip install 'flwr>=1.38,<1.43'"
    )

from fedsparq.flower.mod import compress
from fedsparq.flower.own import FedSparQ
from fedsparq.flower.strategy import Compressed

__all__ = ["Compressed", "FedSparQ", "compress"]
