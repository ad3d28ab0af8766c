"""What a user should know before the first round: who decides what, and which choices do not go well together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from logging import INFO, WARNING

from flwr.serverapp import strategy as flowers
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore import log

from fedsparq.errors import OptionError
from fedsparq.federate.downlink import Lattice
from fedsparq.federate.lattice import FirstModel
from fedsparq.federate.validation import check_kept_in_step
from fedsparq.method import Method
from fedsparq.methods.registry import compresses_downlink
from fedsparq.protocols import ClientRule, RuleTraits, hooks_of, traits_of

PRIVATE = tuple(each for name, each in vars(flowers).items() if name.startswith("DifferentialPrivacy"))
"""What Flower has for differential privacy on the server: all clip and add noise, with numpy's generator."""

_COMPARING = ("FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan")


def layers(strategy: Strategy) -> Iterator[Strategy]:
    """A strategy and those that it wraps, under whatever public name."""
    waiting: list[object] = [strategy]
    known: list[Strategy] = []
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, Strategy) and not any(each is other for other in known):
            known.append(each)
            yield each
            waiting += [value for name, value in vars(each).items() if not name.startswith("_")]


def adds_noise(strategy: Strategy) -> bool:
    return any(isinstance(each, PRIVATE) for each in layers(strategy))


def has_own_start(strategy: Strategy) -> bool:
    """Whether a strategy brings a loop of its own."""
    return type(strategy).start is not Strategy.start


def check_message_api(strategy: object) -> None:
    """Refuse what is not a strategy of Flower's Message API."""
    if not isinstance(strategy, Strategy):
        raise OptionError(
            f"FedSparQ takes a strategy of flwr.serverapp.strategy, not {type(strategy).__module__}."
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
    robust = [name for each in layers(strategy) if (name := type(each).__name__) in _COMPARING]
    if robust and not method.traits.has_common_support:
        log(
            WARNING,
            f"fedsparq: {robust[0]} compares nodes, and takes coordinates that {method.label!r} does not send for ones "
            "that did not move. What that costs differs by method, see docs/FLOWER.md on robust strategies; "
            f'FedSparQ({robust[0]}(...), "float16") sends every coordinate',
        )


def rule_name(rule: ClientRule) -> str:
    """How a rule is named in `runs`: as in the config that it tells the app, or by its class, `drift-correction`."""
    config = traits_of(rule, RuleTraits).config
    return next(iter(config), None) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(rule).__name__).lower()


def check_runs(method: Method, runs: Sequence[str], where: str) -> None:
    """Refuse a method that changes gradients in a way that no mod can, unless the app says that it does so itself.

    A rule that is told to the app in the config, such as the proximal term, is not of this kind: a method without it
    is still the same method with another regularization.
    """
    if isinstance(runs, str):
        raise OptionError(f'runs={runs!r} must be a list of names: runs=["{runs}"]')
    for rule, traits in zip(method.rules, method.traits.rules, strict=True):
        name = rule_name(rule)
        if traits.requires_full_participation:
            raise OptionError(
                f"{method.label!r} keeps a state for its rule {name!r} that training has to use, and a mod cannot hand "
                "to it: it runs as an experiment (`fedsparq run`, `fedsparq deploy`), not in an app"
            )
        if "gradient" in hooks_of(rule) and not traits.config and name not in runs:
            raise OptionError(
                f"{method.label!r} changes the gradients of local training by its rule {name!r}, which only the app "
                f'can do: apply it in the app and say so with runs=["{name}"] in {where}, or choose a method without it'
            )


def lattice_of(method: Method, downlink: str | None, first_model: FirstModel) -> Lattice | None:
    """Return how broadcasts are compressed, or None where they are not; refuse a choice that cannot be kept."""
    if downlink not in ("auto", "lattice", None):
        raise OptionError(f"downlink={downlink!r}: choose 'auto', 'lattice' or None")
    if first_model not in ("8-bit", "one-bit"):
        raise OptionError(f"first_model={first_model!r}: choose '8-bit' or 'one-bit'")
    name = method.identity.name if method.identity else ""
    wanted = downlink == "lattice" or (downlink == "auto" and compresses_downlink(name))
    check_kept_in_step(method, True, wanted)
    if first_model == "one-bit" and not wanted:
        raise OptionError("first_model='one-bit' needs a compressed downlink: give downlink='lattice'")
    return Lattice(first_model) if wanted else None
