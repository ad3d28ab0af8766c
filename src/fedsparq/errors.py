"""Every error a user can meet. Each message says what was wrong and what would be right."""

from collections.abc import Iterable
from difflib import get_close_matches


class FedSparQError(Exception):
    """The root of all FedSparQ errors."""


class OptionError(FedSparQError, ValueError):
    """An unknown name or an impossible value, in a call, a spec or on the command line."""


class UpdateError(FedSparQError, ValueError):
    """An update that cannot be compressed: wrong shape or dtype, NaN or infinity."""


class WireError(FedSparQError, ValueError):
    """Bytes that are not exactly one sound message for this layout."""


class UnknownMethodError(WireError):
    """A message that names a method this side does not have, or has in another version."""


class SecureSumError(WireError):
    """A secure sum that cannot be made, or a message that would give away more than a sum."""


class DataError(FedSparQError):
    """A data set that is missing, broken or too small for what was asked."""


class RunError(FedSparQError):
    """A run folder that cannot be read, written or continued."""


class MissingExtraError(FedSparQError, ImportError):
    """A feature whose optional dependency is not installed."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question for an unknown name that is close to a known one, with a space behind it; else nothing."""
    meant = get_close_matches(name, known, n=1) if len(name) < 100 else []
    return f"did you mean {meant[0]!r}? " if meant else ""
