"""What hostile clients do: whose turn it is to lie, how, and the replies that they forge.

Who is hostile, and which kind of attack it is in a round, are functions of the seed, the round and the client alone.
`label-flip` and `backdoor` tamper with the data (tasks/supervised.py), so that the reply is honest about a dishonest
training; all others tamper with the reply.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedsparq.federate.messages import Reply, decode_answer
from fedsparq.federate.validation import ABSURD
from fedsparq.lab.specs import FaultSpec
from fedsparq.lab.tasks.task import POISONS
from fedsparq.layout import Buffers, Layout, Vector
from fedsparq.payload import Payload
from fedsparq.wire import decode, encode

OMNISCIENT = ("alie", "ipm")
"""Attacks that need the honest replies of the round."""
ALIE_Z = 1.5
"""How many standard deviations ALIE lies off the honest mean: what its authors use on MNIST (Baruch 2019)."""
IPM_SCALE = 10.0
"""Inner-product manipulation sends minus so many times the honest mean (Xie 2019)."""
NOISE = 10.0
"""The norm of Gaussian noise, as a multiple of that of the client's own update."""
SYBIL_SCALE = 5.0
"""Sybils all send minus so many times the update of one of them."""
_HEADER = 13


@dataclass
class Overheard:
    """The sums from which mean and standard deviation of the honest updates of a round follow."""

    size: int
    count: int = 0
    total: NDArray[np.float64] = field(init=False)
    squares: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.total, self.squares = np.zeros(self.size), np.zeros(self.size)

    def add(self, payload: Payload) -> None:
        dense = payload.dense().astype(np.float64)
        self.count += 1
        self.total += dense
        self.squares += dense**2

    @property
    def mean(self) -> NDArray[np.float64]:
        return self.total / max(self.count, 1)

    @property
    def deviation(self) -> NDArray[np.float64]:
        spread: NDArray[np.float64] = self.squares / max(self.count, 1) - self.mean**2
        return np.sqrt(np.maximum(spread, 0))


@dataclass(frozen=True)
class Attack:
    """The hostile clients of a run."""

    faults: FaultSpec
    clients: int
    seed: int

    @cached_property
    def hostile(self) -> frozenset[int]:
        order = np.random.default_rng([self.seed, 3]).permutation(self.clients)
        return frozenset(int(client) for client in order[: round(self.faults.hostile * self.clients)])

    @property
    def omniscient(self) -> bool:
        return bool(self.hostile) and not set(OMNISCIENT).isdisjoint(self.faults.hostile_kinds)

    def kind(self, number: int, client: int) -> str:
        """What a client does in a round; empty if it is honest."""
        if client not in self.hostile or number < self.faults.hostile_from:
            return ""
        kinds = self.faults.hostile_kinds
        return kinds[int(np.random.default_rng([self.seed, number, client, 8]).integers(len(kinds)))]

    def poison(self, number: int, client: int) -> str:
        """How the data are tampered with on which a client trains in a round; empty if they are not."""
        kind = self.kind(number, client)
        return kind if kind in POISONS else ""

    def absent(self, number: int, client: int) -> bool:
        """Whether a client is a sybil that has not joined yet."""
        return client in self.hostile and number < self.faults.hostile_from and self.faults.hostile_kinds == ("sybil",)

    def forge(
        self, kind: str, message: bytes, layout: Layout, rng: np.random.Generator, heard: Overheard, first: bytes
    ) -> bytes:
        """A lie in the place of the client's own reply, well formed down to its checksums. `first` is the own reply of
        the first hostile client of the round."""
        reply = decode_answer(message)
        if not isinstance(reply, Reply):
            return message
        if kind == "garbled":
            return replace(reply, blob=_garbled(reply.blob, rng)).encode()
        own = decode(reply.blob, layout)
        match kind:
            case "nan":
                return replace(
                    reply, blob=encode(Payload.full(layout, own.dense() * np.float32(np.nan), own.buffers))
                ).encode()
            case "scale":
                lie = own.dense() * np.float32(self.faults.hostile_scale)
            case "sign-flip":
                lie = -own.dense()
            case "gaussian":
                noise = rng.normal(size=layout.size)
                lie = noise * (NOISE * own.norm / np.linalg.norm(noise))
            case "free-rider":
                lie = np.zeros(layout.size)
            case "alie":
                lie = heard.mean - ALIE_Z * heard.deviation if heard.count else own.dense()
            case "ipm":
                lie = -IPM_SCALE * heard.mean if heard.count else own.dense()
            case "sybil":
                lie = -SYBIL_SCALE * _update(first, layout)
            case "under-limits":
                return _under_limits(reply, own, rng)
            case _:
                return message
        return replace(reply, blob=encode(_sparse(own, lie))).encode()


def _update(message: bytes, layout: Layout) -> Vector:
    reply = decode_answer(message)
    return decode(reply.blob, layout).dense() if isinstance(reply, Reply) else np.zeros(layout.size, np.float32)


def _sparse(own: Payload, lie: NDArray[np.floating]) -> Payload:
    """Float32 at the coordinates that are not zero; the buffers stay the client's own."""
    limit = np.finfo(np.float32).max
    vector = np.clip(lie, -limit, limit).astype(np.float32)
    indices = np.flatnonzero(vector)
    return replace(Payload.sparse(own.layout, indices, vector[indices]), buffers=own.buffers)


def _under_limits(reply: Reply, own: Payload, rng: np.random.Generator) -> bytes:
    """Everything as large as it may be: values, statistics, counters and the number of examples."""
    most = np.float32(np.nextafter(np.float32(ABSURD), np.float32(0)))
    vector = np.where(rng.random(own.layout.size) < 0.5, -most, most).astype(np.float32)
    buffers = own.buffers
    if buffers is not None:
        buffers = Buffers(np.full_like(buffers.statistics, most), buffers.counters + int(ABSURD) - 1000)
    forged = encode(Payload.full(own.layout, vector, buffers))
    return replace(reply, blob=forged, examples=2**32 - 1).encode()


def _garbled(blob: bytes, rng: np.random.Generator) -> bytes:
    """A message whose header and checksum are right and whose content is not."""
    body = bytearray(blob[:-8])
    for at in rng.integers(_HEADER, max(len(body), _HEADER + 1), 1 + len(body) // 50):
        body[min(int(at), len(body) - 1)] = int(rng.integers(256))
    return bytes(body) + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")
