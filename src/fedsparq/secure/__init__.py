"""Secure sums: the server learns the sum of its clients' whole numbers, and nothing else of any of them.

The protocol of Bell et al. (2020): pairwise masks on a ring of neighbours, a mask of each client's own, and shares of
both secrets with the neighbours, so that the sum survives clients that drop out at any stage. The server is believed to
be honest but curious: see docs/PRIVACY.md for what that promises and what it does not.
"""

from fedsparq.errors import MissingExtraError

try:
    from fedsparq.secure.client import Member
    from fedsparq.secure.server import SecureSum
    from fedsparq.secure.terms import Terms
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "cryptography":
        raise
    raise MissingExtraError("secure aggregation needs cryptography: pip install 'fedsparq[secure]'") from None

__all__ = ["Member", "SecureSum", "Terms"]
