"""FedSparQ: adaptive sparse quantization with error feedback for federated learning.

Names are imported when they are first used, so that importing the package takes no time.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

# isort: off
if TYPE_CHECKING:
    from fedsparq.aggregate import Mean as Mean, whole_round as whole_round
    from fedsparq.errors import (
        FedSparQError as FedSparQError,
        OptionError as OptionError,
        UpdateError as UpdateError,
        WireError as WireError,
    )
    from fedsparq.lab.experiments.api import Result as Result, compare as compare, run as run
    from fedsparq.lab.experiments.callbacks import Callback as Callback
    from fedsparq.federate.client import Client as Client, Trained as Trained
    from fedsparq.federate.model import Model as Model
    from fedsparq.federate.server import Server as Server
    from fedsparq.federate.store import DiskStore as DiskStore, MemoryStore as MemoryStore
    from fedsparq.federate.validation import Validation as Validation
    from fedsparq.layout import Buffers as Buffers, Layout as Layout
    from fedsparq.method import Identity as Identity, Method as Method
    from fedsparq.methods import METHODS as METHODS, method as method, register as register, resolver as resolver
    from fedsparq.optimize import Adam as Adam, Momentum as Momentum, Step as Step, Yogi as Yogi
    from fedsparq.payload import (
        Dense as Dense,
        Payload as Payload,
        Sparse as Sparse,
        Values as Values,
        register_values as register_values,
    )
    from fedsparq.protocols import (
        Aggregate as Aggregate,
        Aggregator as Aggregator,
        ClientRule as ClientRule,
        Compressor as Compressor,
        Feedback as Feedback,
        Optimizer as Optimizer,
        State as State,
        Update as Update,
    )
    from fedsparq.rules import Proximal as Proximal
    from fedsparq.lab.tasks.dataset import Dataset as Dataset
    from fedsparq.wire import decode as decode, encode as encode

    __version__: str

_HOMES = {
    "aggregate": "Mean whole_round",
    "errors": "FedSparQError OptionError UpdateError WireError",
    "lab.experiments.api": "Result compare run",
    "lab.experiments.callbacks": "Callback",
    "federate.client": "Client Trained",
    "federate.model": "Model",
    "federate.server": "Server",
    "federate.store": "DiskStore MemoryStore",
    "federate.validation": "Validation",
    "layout": "Buffers Layout",
    "method": "Identity Method",
    "methods": "METHODS method register resolver",
    "optimize": "Adam Momentum Step Yogi",
    "payload": "Dense Payload Sparse Values register_values",
    "protocols": "Aggregate Aggregator ClientRule Compressor Feedback Optimizer State Update",
    "rules": "Proximal",
    "lab.tasks.dataset": "Dataset",
    "wire": "decode encode",
}
_HOME = {name: f"fedsparq.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = [*sorted(_HOME), "__version__"]


class _Package(ModuleType):
    """`fedsparq.method` is the function, also when the module of that name has been imported."""

    @property
    def method(self) -> Any:
        return import_module(_HOME["method"]).method

    @method.setter
    def method(self, module: ModuleType) -> None:
        pass


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedsparq")
    if name not in _HOME:
        raise AttributeError(f"module 'fedsparq' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


import_module("fedsparq.moved")
sys.modules[__name__].__class__ = _Package
