"""A program: a Flower node gets messages whose header or arrays were exchanged, checksums put right.

It prints how many were answered with arrays and with an error, and whatever was raised. A message that takes more than
some seconds of the processor ends it by a signal; what it was is in the file named last.

    python mutated_messages.py COUNT SEED FILE
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from copy import deepcopy
from pathlib import Path

import flower_targets as flower
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from mutated_broadcasts import MEMORY, SECONDS, choice
from mutations import mutate
from toy import client_app, model

from fedsparq.flower import FedSparQ, compress
from fedsparq.flower.records import KEY, unwrap, without_frame, wrap
from inprocess_grid import InProcessGrid

ROUNDS = 3


def recorded(states: Path) -> list[tuple[Context, dict[Path, bytes], Message]]:
    """What a node got in some rounds, each time with the files that it had before."""
    found = []
    app = client_app(compress(state=states))

    def listening(message: Message, context: Context) -> Message:
        files = {path: path.read_bytes() for path in states.rglob("*") if path.is_file()}
        found.append((context, files, deepcopy(message)))
        return app(message, context)

    for downlink in ("lattice", None):
        grid = InProcessGrid([listening, client_app(compress(state=states))])  # type: ignore[list-item]
        FedSparQ(downlink=downlink).start(grid, model(), num_rounds=ROUNDS, timeout=1)
    return found


def frame_of(message: Message) -> bytes:
    return without_frame(message.content)[1] or b""


def restore(states: Path, files: dict[Path, bytes]) -> None:
    shutil.rmtree(states, ignore_errors=True)
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def changed(message: Message, other: Message, rng: np.random.Generator) -> Message:
    """The same message with one thing exchanged."""
    made = deepcopy(message)
    (name, record), *_ = made.content.config_records.items()
    (key, arrays), *_ = made.content.array_records.items()
    framed = unwrap(arrays) is not None
    if framed or rng.random() < 0.6:
        data = mutate(frame_of(message), frame_of(other), rng) or b"\0"
        data = flower.forge_header(data) if rng.random() < 0.8 else data
        made.content[key if framed else name] = wrap(data) if framed else ConfigRecord({**record, KEY: data})
        return made
    which = choice(rng, sorted(arrays))
    own, others = arrays[which], next(iter(other.content.array_records.values()))
    match int(rng.integers(4)):
        case 0 | 1:
            data = mutate(own.data or b"\0", choice(rng, list(others.values())).data, rng)
            arrays[which] = Array(own.dtype, own.shape, own.stype, data)
        case 2:
            arrays[which] = Array(own.dtype, choice(rng, [(), (1,), (2**40,), own.shape]), own.stype, own.data)
        case _:
            del arrays[which]
    made.content[key] = ArrayRecord(dict(arrays))
    return made


def main(count: int, seed: int, file: Path, states: Path) -> None:
    rng, found, raised = np.random.default_rng([seed, 9]), Counter[str](), set[str]()
    seen, app = recorded(states), client_app(compress(state=states))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for _ in range(count):
        (context, files, message), (_, _, other) = choice(rng, seen), choice(rng, seen)
        made = changed(message, other, rng)
        restore(states, files)
        file.write_bytes(frame_of(made))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found["refused" if app(made, context).has_error() else "taken"] += 1
        except Exception as error:
            found["raised"] += 1
            raised.add(f"{type(error).__name__}: {error}"[:120])
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps({**found, "errors": sorted(raised)}))


if __name__ == "__main__":
    memory = Path("/dev/shm")  # there files need not be waited for
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(folder) / "states")
