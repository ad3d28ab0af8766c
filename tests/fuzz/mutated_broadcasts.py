"""A program: one client after another gets broadcasts of which a field was exchanged, checksums put right.

It prints how many were taken and refused, and whatever was raised that is no error of ours. A message that takes more
than some seconds of the processor ends it by a signal; what it was is in the file named last.

    python mutated_broadcasts.py COUNT SEED FILE
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import forging
import numpy as np
import sound_messages as sound
from mutations import hostile, mutate
from numpy.typing import NDArray
from sound_messages import LAYOUT
from targets import TARGETS

from fedsparq.archive import ArchiveError
from fedsparq.errors import FedSparQError
from fedsparq.federate.messages import Acknowledgement, Broadcast, reply_digest
from fedsparq.method import Identity
from fedsparq.methods import METHODS, method
from fedsparq.payload.support import RoundPlan, SupportPlan

SECONDS = 5.0
"""Of the processor's time, for one message."""
MEMORY = 8 << 30

_SUPPORT = SupportPlan.of_indices(LAYOUT.size, 20, 7, np.arange(3, dtype=np.uint32))
PLANS = (
    None,
    RoundPlan(clip=0.05),
    RoundPlan(_SUPPORT, 0.01),
    RoundPlan(_SUPPORT, 0.01, top=15, clip=0.1),
)
NAMES = ("fedsparq", "fedsparq", "fedsparq-private", "fedsparq-private")
NUMBERS = (-np.inf, -1e300, -1.0, -1e-300, -0.0, 0.0, 1e-300, 1e-45, 1e-40, 1e-12, 1.0, 1e30, 1e300, np.inf, np.nan)
COUNTS = (-(2**63), -1, 0, 1, 2, 19, 20, LAYOUT.size, LAYOUT.size + 1, 2**31, 2**32, 2**62, 2**63 - 1)
KINDS = ("<f4", "<f8", "<f2", "<i8", "<u8", "<u1", "<i4", "|b1")
SCALARS = (None, True, -1, 0, 1, 2**31, 2**70, 0.5, -0.5, 1e-300, 1e300, 0.999999, "", "x", "1 B", "1 GB", [], [1], {})


@cache
def sent(kind: int) -> Broadcast:
    """A sound broadcast to a client that has answered two rounds."""
    state = sound.client_after_two_rounds(NAMES[kind])
    last = Acknowledgement(2, reply_digest(state.in_flight), 0.5)
    return sound.broadcast(3, NAMES[kind], last, plan=PLANS[kind])


def choice(rng: np.random.Generator, values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def strange_array(rng: np.random.Generator) -> NDArray[Any]:
    """Numbers that no plan holds, in any type and shape."""
    shape = choice(rng, [(1,), (1,), (1,), (), (0,), (2,), (1, 1), (LAYOUT.size,), (24,), (25,)])
    kind = choice(rng, KINDS)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if rng.random() < 0.2:
            return rng.integers(0, 256, 8 * max(1, int(np.prod(shape))), np.uint8).view(kind)[: int(np.prod(shape))]
        value = choice(rng, NUMBERS) if "f" in kind else choice(rng, COUNTS)
        return np.full(shape, value).astype(kind)


@dataclass(frozen=True)
class Forged:
    """A plan that nobody could make."""

    said: dict[str, NDArray[Any]]

    def arrays(self) -> dict[str, NDArray[Any]]:
        return self.said


def strange_plan(broadcast: Broadcast, rng: np.random.Generator) -> Broadcast:
    plan = dict(broadcast.plan.arrays()) if broadcast.plan is not None else {}
    name = choice(rng, [*plan, "clip", "step", "top", "seed", "count", "listed", "variance", "more"])
    if rng.random() < 0.2:
        plan.pop(name, None)
    elif rng.random() < 0.4 and name in plan:  # as it should be, but for its value
        value = np.asarray(choice(rng, NUMBERS if plan[name].dtype.kind == "f" else COUNTS))
        with np.errstate(all="ignore"):
            plan[name] = np.broadcast_to(value.astype(plan[name].dtype), plan[name].shape)
    else:
        plan[name] = strange_array(rng)
    return replace(broadcast, plan=Forged(plan))  # type: ignore[arg-type]


def strange_method(broadcast: Broadcast, rng: np.random.Generator) -> Broadcast:
    own = broadcast.method
    if rng.random() < 0.5:
        own = method(choice(rng, sorted(METHODS))).identity or own
    options = dict(own.options)
    name = choice(rng, [*options, "more", "self", ""])
    if rng.random() < 0.8:
        options[name] = choice(rng, SCALARS)
    return replace(broadcast, method=Identity(own.name, own.version, options))


def strange_field(broadcast: Broadcast, rng: np.random.Generator) -> Broadcast:
    count = choice(rng, [0, 1, 2, 3, 4, 63, 64, 2**31, 2**32 - 1])
    last = broadcast.acknowledged or Acknowledgement()
    match int(rng.integers(7)):
        case 0:
            return replace(broadcast, norm_limit=choice(rng, NUMBERS))
        case 1:
            return replace(broadcast, acknowledged=replace(last, share=choice(rng, NUMBERS)))
        case 2:
            return replace(broadcast, acknowledged=choice(rng, [None, replace(last, round=count), Acknowledgement(1)]))
        case 3:
            return replace(broadcast, base=count)
        case 4:
            return replace(broadcast, round=count)
        case 5:
            return replace(broadcast, pending=(count, 2, count), also_counted=(replace(last, round=count),))
        case _:
            return replace(broadcast, hold=not broadcast.hold)


def strange_blob(broadcast: Broadcast, rng: np.random.Generator) -> Broadcast:
    other = choice(rng, sound.blobs())
    blob = forging.forge_blob(mutate(broadcast.blobs[0], other, rng) or b"\0")
    kind = int(rng.integers(4))
    if kind == 0:
        blob = other
    elif kind == 1:
        return replace(broadcast, base=2, blobs=(blob,))
    elif kind == 2:
        return replace(broadcast, base=1, blobs=(other, blob))
    return replace(broadcast, blobs=(blob,))


def mutated(rng: np.random.Generator) -> tuple[str, bytes]:
    """The method of the client, and a message."""
    kind = int(rng.integers(len(PLANS)))
    if rng.random() < 0.15:
        return NAMES[0], hostile(TARGETS["broadcast"], TARGETS["broadcast"].seeds(), rng)
    made = sent(kind)
    for _ in range(1 + int(rng.integers(3))):
        made = choice(rng, (strange_plan, strange_plan, strange_method, strange_field, strange_blob))(made, rng)
    return NAMES[kind], made.encode()


def answered(name: str, message: bytes) -> bool:
    """Whether a client takes the message. What it takes leaves it sound, what it refuses leaves it as it was."""
    store = sound.store_after_two_rounds(name)
    before = store.states[0]
    try:
        sound.new_client(store).answer(message)
    except FedSparQError:
        assert store.states[0] is before
        return False
    residual = store.states[0].compression.residual
    assert residual is None or np.isfinite(residual).all()
    return store.states[0] is not before


def main(count: int, seed: int, file: Path) -> None:
    rng, found, raised = np.random.default_rng([seed, 8]), Counter[str](), dict[str, str]()
    for name in set(NAMES):
        sound.client_after_two_rounds(name)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for _ in range(count):
        try:
            name, message = mutated(rng)
        except (FedSparQError, ArchiveError, struct.error, OverflowError):
            found["never sent"] += 1
            continue
        file.write_bytes(message)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found["taken" if answered(name, message) else "refused"] += 1
        except Exception as error:
            found["raised"] += 1
            raised.setdefault(f"{type(error).__name__}: {error}"[:120], message.hex()[:400])
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps({**found, "errors": list(raised)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
