"""Things that go wrong in the field, made to happen: an engine around another one.

What happens to a client in a round is a function of the seed, the round and the client alone, so that two runs with the
same spec suffer the same faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import TracebackType

import numpy as np

from fedsparq.compress.payload import Floats, Listed, Payload
from fedsparq.engines.local import Delivery, Engine
from fedsparq.experiments.spec import FaultSpec
from fedsparq.federate.messages import Reply
from fedsparq.layout import Layout
from fedsparq.wire.frame import decode, encode


class ServerCrashError(Exception):
    """The server dies here, in the middle of a round."""


class FaultyEngine:
    """Loses, delays, doubles and damages answers, crashes clients and the server, and lets some clients lie."""

    def __init__(self, inner: Engine, faults: FaultSpec, layout: Layout, clients: int, seed: int) -> None:
        self._inner, self._faults, self._layout, self._seed = inner, faults, layout, seed
        self._late: list[Delivery] = []
        self._last: dict[int, bytes] = {}
        self._crashed: set[int] = set()
        order = np.random.default_rng([seed, 3]).permutation(clients)
        self.hostile = frozenset(int(client) for client in order[: round(faults.hostile * clients)])

    def __enter__(self) -> FaultyEngine:
        self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)

    def exchange(
        self, number: int, requests: Mapping[int, bytes], saved: int, dying: frozenset[int] = frozenset()
    ) -> Iterator[Delivery]:
        late, self._late = self._late, []
        yield from late
        chances = {client: np.random.default_rng([self._seed, number, client, 4]) for client in requests}
        dying |= {client for client, rng in chances.items() if rng.random() < self._faults.crash_before}
        crash_at = self._crash_step(number, len(requests))
        for step, delivery in enumerate(self._inner.exchange(number, requests, saved, dying)):
            if step == crash_at:
                raise ServerCrashError
            yield from self._disturb(delivery, chances[delivery.client], number)

    def _crash_step(self, number: int, steps: int) -> int:
        """Before which answer the server crashes; -1 for none. It crashes once a round at most."""
        rng = np.random.default_rng([self._seed, number, 5])
        if number in self._crashed or rng.random() >= self._faults.server_crash:
            return -1
        self._crashed.add(number)
        return int(rng.integers(steps))

    def _disturb(self, delivery: Delivery, rng: np.random.Generator, number: int) -> Iterator[Delivery]:
        faults, message = self._faults, delivery.answer.message
        lost, late, doubled, damaged, dead = rng.random(5) < (
            faults.drop,
            faults.late,
            faults.duplicate,
            faults.flip,
            faults.crash_after,
        )
        if message is None or lost or dead:
            reason = "no answer" if message is None else "answer lost on the way" if lost else "died before sending"
            yield _with(delivery, None, reason)
            return
        if delivery.client in self.hostile:
            delivery = _with(delivery, self._lie(delivery.client, message, rng, number), "")
        elif damaged:
            delivery = _with(delivery, _flipped(message, rng), "")
        self._last[delivery.client] = message
        if late:
            self._late.append(delivery)
            yield _with(delivery, None, "answer delayed beyond the round")
            return
        yield delivery
        if doubled:
            yield delivery

    def _lie(self, client: int, message: bytes, rng: np.random.Generator, number: int) -> bytes:
        match self._faults.hostile_kinds[int(rng.integers(len(self._faults.hostile_kinds)))]:
            case "random":
                return rng.bytes(len(message))
            case "replay":
                return self._last.get(client, rng.bytes(len(message)))
            case "nan":
                return self._forged(message, np.float32(np.nan))
            case "scale":
                return self._forged(message, np.float32(self._faults.hostile_scale))

    def _forged(self, message: bytes, factor: np.float32) -> bytes:
        """The client's own reply with every value multiplied, well formed down to its checksum."""
        reply = Reply.decode(message)
        honest = decode(reply.blob, self._layout)
        values = tuple(Floats(factor * v.decoded()) for v in honest.values)
        return replace(
            reply, blob=encode(Payload(self._layout, Listed(honest.positions), values, honest.exact))
        ).encode()


def _with(delivery: Delivery, message: bytes | None, remark: str) -> Delivery:
    remarks = (*delivery.answer.remarks, remark) if remark else delivery.answer.remarks
    return replace(delivery, answer=replace(delivery.answer, message=message, remarks=remarks))


def _flipped(message: bytes, rng: np.random.Generator) -> bytes:
    data = bytearray(message)
    at = int(rng.integers(8 * len(data)))
    data[at >> 3] ^= 1 << (at & 7)
    return bytes(data)
