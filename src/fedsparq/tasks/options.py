"""How a client trains, and calls of users' own functions, as options that are checked when they are given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping
from typing import Any

from fedsparq.errors import FedSparQError, OptionError
from fedsparq.imports import describe_error, importable_from_here
from fedsparq.options import Count, Decay, NonNegative, Positive, component


@component
class Training:
    """SGD on a client. ``steps``, where given, counts batches and overrides ``epochs``.

    ``clip_norm`` bounds the norm of the gradient after the client rules have seen it; weight decay comes after it.
    """

    lr: Positive = 0.1
    momentum: Decay = 0.0
    weight_decay: NonNegative = 0.0
    epochs: Count = 1
    steps: Count | None = None
    batch_size: Count = 32
    clip_norm: Positive | None = None

    def reach(self, steps: int) -> float:
        """How far so many steps would move a weight against a gradient of 1: lr * steps, and more with momentum."""
        momentum = self.momentum
        behind = momentum * (1 - momentum**steps) / (1 - momentum)
        return self.lr * (steps - behind) / (1 - momentum)


@component
class PerExample:
    """What makes the gradient of a client private, record by record, before anything else is done with it: each
    example's own gradient has at most the norm ``clip``, and noise of ``noise`` times that is added to their sum."""

    clip: Positive
    noise: NonNegative


def call_checked(what: str, make: Callable[..., Any], arguments: Mapping[str, Any], offered: Container[str]) -> Any:
    """Call a function that may be a user's own. Its options are its parameters but for those that each is offered."""
    signature = inspect.signature(make)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        own = ", ".join(key for key in signature.parameters if key not in offered)
        raise OptionError(f"{what}: {error}; its options are: {own or 'none'}") from error
    with importable_from_here():
        try:
            return make(**arguments)
        except FedSparQError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise OptionError(f"{what} failed: {describe_error(error)}") from error
