"""What a user should know before the first round: who decides what, and which choices do not go well together."""

from __future__ import annotations

from logging import INFO, WARNING

import numpy as np
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore import log

from fedsparq.errors import OptionError
from fedsparq.flower.rules import rule_name
from fedsparq.flower.wrappers import layers
from fedsparq.layout import Layout
from fedsparq.method import Method

_COMPARING = ("FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan")
_PROBE = Layout.of({"probe.weight": (64, 64)})


def check_message_api(strategy: object) -> None:
    """Refuse what is not a strategy of Flower's Message API."""
    if not isinstance(strategy, Strategy):
        raise OptionError(
            f"Compressed takes a strategy of flwr.serverapp.strategy, not {type(strategy).__module__}."
            f"{type(strategy).__name__}; move the app to Flower's Message API to use it, "
            "see https://flower.ai/docs/framework/how-to-upgrade-to-message-api.html"
        )


def say_who_decides(strategy: Strategy, method: Method) -> None:
    """One sentence about what of a method is used around somebody else's strategy."""
    name = type(strategy).__name__
    rules = [rule_name(rule) for rule in method.rules]
    unused = f", and its client rules ({', '.join(rules)}) reach the app only by its own config" if rules else ""
    instead = "; FedSparQ() runs the whole method" if type(strategy) is FedAvg else ""
    log(INFO, f"fedsparq: {method.label!r} compresses; {name} averages and steps, not the method{unused}{instead}")


def warn_of_robust(strategy: Strategy, method: Method) -> None:
    """Robust rules compare nodes with each other, and what is not sent looks to them as if it had not moved."""
    robust = [type(each).__name__ for each in layers(strategy)]
    robust = [name for name in robust if name in _COMPARING]
    zeros = zeros_of(method) if robust else 0.0
    if zeros > 0.05:
        log(
            WARNING,
            f"fedsparq: {robust[0]} compares nodes, and takes coordinates that {method.label!r} does not send (about "
            f"{zeros:.0%}) for ones that did not move. What that costs differs by method, see docs/FLOWER.md on robust "
            f'strategies; Compressed({robust[0]}(...), "float16") sends every coordinate',
        )


def zeros_of(method: Method) -> float:
    """Which share of an update's coordinates arrives as zero; measured on a small Laplace vector."""
    update = np.random.default_rng(0).laplace(size=_PROBE.size).astype(np.float32)
    payload, _ = method.compress(update, method.init(_PROBE), np.random.default_rng(1))
    return float((payload.dense() == 0).mean())


def calls_aggregate(strategy: Strategy) -> bool:
    """Whether a strategy's loop hands replies to `aggregate_train`; one with a loop of its own may not."""
    if type(strategy).start.__module__.startswith("flwr."):
        return True
    own = [vars(kind) for kind in type(strategy).__mro__ if not kind.__module__.startswith("flwr.")]
    codes = [getattr(each, "__code__", None) for namespace in own for each in namespace.values()]
    names = {name for code in codes if code is not None for name in code.co_names}
    return "aggregate_train" in names or {"super", "start"} <= names
