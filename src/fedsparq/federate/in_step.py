"""Methods that keep something on both sides, and runs in which the two sides would part."""

from __future__ import annotations

from fedsparq.errors import OptionError
from fedsparq.method import Method


def check_kept_in_step(method: Method, acknowledge: bool, downlink: bool, everyone: bool = True) -> None:
    """Refuse a run in which a method could not keep clients and server in step."""
    if method.traits.needs_acks and not acknowledge:
        raise OptionError(
            f"{method.label!r} moves what clients remember only by replies that counted: acknowledge must be on"
        )
    if method.traits.requires_full_participation and (downlink or not everyone):
        what = "a compressed broadcast" if downlink else "clients that are not asked in every round"
        raise OptionError(
            f"{method.label!r} learns the mean update from two models in a row, which {what} would hide; "
            "leave downlink out and take fraction=1, or choose another method"
        )
