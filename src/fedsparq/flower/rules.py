"""What a method says of local training, and who applies it in a Flower app: the app itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedsparq.errors import OptionError
from fedsparq.method import Method
from fedsparq.protocols import ClientRule, RuleTraits, hooks_of, traits_of


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
        if "gradient" in hooks_of(rule) and not traits.config and name not in runs:
            raise OptionError(
                f"{method.label!r} changes the gradients of local training by its rule {name!r}, which only the app "
                f'can do: apply it in the app and say so with runs=["{name}"] in {where}, or choose a method without it'
            )
