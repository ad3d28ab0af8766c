"""The terms of one secure sum: what server and clients must agree on before any secret is made."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from fedsparq.errors import OptionError, WireError

_FIXED = "<IIBIIIH"
MAX_BITS = 32
_MAX_NAME = 256


@dataclass(frozen=True)
class Terms:
    """All that the keys of a round are bound to."""

    federation: str
    round: int
    length: int
    """How many whole numbers are summed."""
    bits: int
    """They are summed modulo 2^bits."""
    clients: int
    """How many were asked."""
    threshold: int
    """So many of a client's neighbours must be there to give its secrets away, and fewer cannot."""
    survivors: int
    """A sum of fewer clients is not made."""
    neighbours: int
    """How many each client has."""

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MAX_BITS:
            raise OptionError(f"secure sums are made modulo 2^1 to 2^{MAX_BITS}, not 2^{self.bits}")
        if not 2 <= self.neighbours < self.clients:
            raise OptionError(
                f"{self.clients} clients cannot have {self.neighbours} neighbours each; at least 3 clients"
            )
        if not self.neighbours < 2 * self.threshold <= 2 * self.neighbours:
            raise OptionError(
                f"threshold={self.threshold} of {self.neighbours} neighbours: it must be more than half of them, "
                "else the server could learn both secrets of a client from two halves"
            )
        if not max(self.threshold, self.clients // 2) < self.survivors <= self.clients:
            raise OptionError(
                f"survivors={self.survivors}: it must be above threshold={self.threshold} and half of the clients, "
                f"or two halves could be told two stories, and at most {self.clients}"
            )

    @classmethod
    def usual(
        cls, federation: str, number: int, length: int, bits: int, clients: int, colluders: int, survivors: int = 0
    ) -> Terms:
        """The usual numbers: up to 64 neighbours, of which more than 3 in 5 are needed, and so many survivors that any
        two such groups share a client that is no colluder. Where all are neighbours, more than the colluders are
        needed."""
        neighbours = min(clients - 1, 64)
        threshold = max(3 * neighbours // 5, colluders if neighbours == clients - 1 else 0) + 1
        least = max((clients + colluders) // 2, threshold) + 1
        if survivors and survivors < least:
            raise OptionError(
                f"survivors={survivors}: of {clients} clients, {colluders} colluding, it is {least} or more"
            )
        return cls(federation, number, length, bits, clients, threshold, survivors or least, neighbours)

    def encode(self) -> bytes:
        """The text that keys are derived from and nodes sign."""
        name = self.federation.encode()
        if len(name) > _MAX_NAME:
            raise OptionError(f"the name of a federation takes at most {_MAX_NAME} bytes")
        numbers = self.round, self.length, self.bits, self.clients, self.threshold, self.survivors, self.neighbours
        return struct.pack(_FIXED, *numbers) + name

    @classmethod
    def decode(cls, data: bytes) -> Terms:
        size = struct.calcsize(_FIXED)
        if not size <= len(data) <= size + _MAX_NAME:
            raise WireError("the terms of a secure sum cannot be read")
        try:
            number, length, bits, clients, threshold, survivors, neighbours = struct.unpack(_FIXED, data[:size])
            return cls(data[size:].decode(), number, length, bits, clients, threshold, survivors, neighbours)
        except (OptionError, UnicodeDecodeError) as error:
            raise WireError(f"the terms of a secure sum cannot be: {error}") from None
