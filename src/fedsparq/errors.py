"""Every error a user can meet. Each message says what was wrong and what would be right."""


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
