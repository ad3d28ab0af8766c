"""How many bytes there are: amounts as people write them."""

from __future__ import annotations

import re

from fedsparq.errors import OptionError

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*")


def parse_bytes(amount: str | int) -> int:
    """A number of bytes from text such as "20 kB", "5 MB", "1.5 MiB" or "4096".

    >>> parse_bytes("20 kB"), parse_bytes("1.5 KiB"), parse_bytes(300)
    (20000, 1536, 300)
    """
    found = _AMOUNT.fullmatch(str(amount))
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise OptionError(f"{amount!r} is not an amount of bytes; write one such as '20 kB', '5 MB' or '1.5 MiB'")
    count = int(float(found[1]) * unit)
    if count < 1:
        raise OptionError(f"{amount!r} is less than one byte")
    return count
