"""Two lines that make a Flower app's traffic small.

On the client: ``@app.train(mods=[compress("fedsparq")])``. On the server: ``strategy = Compressed(FedAvg(...))``.
"""

from fedsparq.errors import MissingExtraError

try:
    import flwr.app  # noqa: F401
except ImportError as error:
    raise MissingExtraError("fedsparq.flower needs Flower: pip install 'fedsparq[flower]'") from error

from fedsparq.flower.mod import compress
from fedsparq.flower.strategy import Compressed, FedSparQ

__all__ = ["Compressed", "FedSparQ", "compress"]
