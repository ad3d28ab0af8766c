"""Files that somebody else may have written: streams, residuals, held models, secrets, checkpoints, run folders."""

from __future__ import annotations

import random
import tempfile
from contextlib import suppress
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import sound_messages as sound
import xxhash
from flwr.serverapp.strategy import FedAdam
from sound_messages import LAYOUT, scratch
from toy import client_app, model

from fedsparq.errors import FedSparQError, RunError, SecureSumError, WireError
from fedsparq.federate.state import HeldModel
from fedsparq.flower import FedSparQ, compress
from fedsparq.lab.results import Results
from fedsparq.large import Message
from fedsparq.large import compress as compress_file
from fedsparq.large.container import MessageReader
from fedsparq.large.residual import Residual
from fedsparq.secure import Terms
from fedsparq.secure.client import Member
from fedsparq.secure.keys import NodeKey
from fedsparq.secure.messages import Invitation
from inprocess_grid import InProcessGrid
from made_runs import make_run

_START = 9
"""Magic, version and the length of the header of a stream."""
SMALL = 1 << 16


@cache
def _compressed() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Streams, and the residuals beside them."""
    streams, residuals, rng = [], [], np.random.default_rng(1)
    for name in ("fedsparq", "powersgd", "fedsparq-adaptive"):
        update = {"w": rng.normal(size=(30, 40)).astype(np.float32), "b": rng.normal(size=9).astype(np.float32)}
        folder = Path(tempfile.mkdtemp(dir=scratch()))
        compress_file(update, folder / "residual", folder / "stream", method=name)
        streams.append((folder / "stream").read_bytes())
        residuals.append((folder / "residual").read_bytes())
    return tuple(streams), tuple(residuals)


def streams() -> tuple[bytes, ...]:
    return _compressed()[0]


def _summed(data: bytes) -> bytes:
    return data + xxhash.xxh3_64_intdigest(data).to_bytes(8, "little")


def forge_stream(data: bytes) -> bytes:
    """Start and checksums, of the whole and of each piece, as they should be."""
    length = int.from_bytes(data[5:_START], "little") % (len(data) + 1)
    header, rest = data[_START : _START + length], data[_START + length : -8]
    made = b"FSQS\1" + len(header).to_bytes(4, "little") + header
    while len(rest) > 4:
        size = int.from_bytes(rest[:4], "little")
        blob, rest = rest[4 : 4 + size], rest[4 + size :]
        blob = _summed(blob[:-8]) if len(blob) > 8 else blob
        made += len(blob).to_bytes(4, "little") + blob
    return _summed(made)


def stream_holds(data: bytes) -> bool:
    return data[:5] == b"FSQS\1" and _summed(data[:-8]) == data


def check_stream(data: bytes) -> bool:
    path = scratch() / "stream"
    path.write_bytes(data)
    try:
        total = {name: np.zeros(shape, np.float32) for name, shape in _shapes(data).items()}
        Message(path).add_to(total, threads=1)
    except FedSparQError:
        return False
    return True


def _shapes(data: bytes) -> dict[str, tuple[int, ...]]:
    """Those of the stream, if they are of a small model; else of another."""
    shapes = dict(MessageReader(BytesIO(data)).about.shapes)
    sizes = [np.prod([float(length) for length in shape]) for shape in shapes.values()]
    return shapes if sum(sizes) <= SMALL else {"w": (30, 40)}


def residuals() -> tuple[bytes, ...]:
    return _compressed()[1]


def unforged(data: bytes) -> bytes:
    return data


def check_residual(data: bytes) -> bool:
    path = scratch() / "residual"
    path.write_bytes(data)
    try:
        found = Residual(path)
        for name in found.shapes:
            assert found._file is not None
            found._file.part(name, 0, 1)
    except FedSparQError:
        return False
    return found.record is not None


def held_models() -> tuple[bytes, ...]:
    held = [held for name in sound.STATEFUL for held in sound.store_after_two_rounds(name).held.values()]
    return tuple(b"".join(each.encode_parts()) for each in held)


def check_held(data: bytes) -> bool:
    held = HeldModel.decode(data, LAYOUT)
    assert held is None or held.model.vector.shape == (held.model.layout.size,)
    return held is not None


@cache
def secrets() -> tuple[bytes, ...]:
    """A client in a secure sum, before it and after it showed its keys."""
    member = Member(NodeKey(bytes(range(32))), {1: bytes(range(32))})
    before = member.encode()
    member.advertise(Invitation(3, Terms.usual("federation", 7, 100, 16, 5, colluders=1)).encode())
    return before, member.encode()


def check_secrets(data: bytes) -> bool:
    try:
        Member.decode(data)
    except SecureSumError:
        return False
    return True


def _adaptive(folder: Path) -> FedSparQ:
    return FedSparQ(FedAdam(fraction_evaluate=0.0), downlink="lattice", checkpoint=folder, federation="f")


def _own(folder: Path) -> FedSparQ:
    return FedSparQ(optimizer="momentum", checkpoint=folder, federation="f")


@cache
def flower_checkpoints() -> tuple[bytes, ...]:
    found = []
    for make in (_adaptive, _own):
        folder = Path(tempfile.mkdtemp(dir=scratch()))
        make(folder).start(InProcessGrid([client_app(compress())] * 2), model(), num_rounds=2, timeout=1)
        found.append((folder / "server.safetensors").read_bytes())
    return tuple(found)


def check_flower_checkpoint(data: bytes) -> bool:
    """A new run goes on from it, or says that it cannot."""
    taken, chance, generator = False, random.getstate(), np.random.get_state()
    for make in (_adaptive, _own):
        with tempfile.TemporaryDirectory(dir=scratch()) as name:
            (Path(name) / "server.safetensors").write_bytes(data)
            with suppress(FedSparQError), np.errstate(all="ignore"):
                make(Path(name)).start(InProcessGrid([client_app(compress())] * 2), model(), num_rounds=3, timeout=1)
                taken = True
    random.setstate(chance)
    np.random.set_state(generator)
    return taken


_FILES = ("summary.json", "rounds.jsonl", "spec.toml", "partition.json", "rows.csv")


@cache
def _run() -> Path:
    folder = make_run(Path(tempfile.mkdtemp(dir=scratch())), rounds=3)
    Results.read([folder]).frame().to_csv(folder / "rows.csv", index=False)
    return folder


def run_files() -> tuple[bytes, ...]:
    """Each file of a run's folder, after its number."""
    return tuple(bytes([number]) + (_run() / name).read_bytes() for number, name in enumerate(_FILES))


def check_run_file(data: bytes) -> bool:
    path = _run() / _FILES[data[0] % len(_FILES)]
    before = path.read_bytes()
    try:
        path.write_bytes(data[1:])
        with np.errstate(all="ignore"):
            read = Results.read([path if path.suffix == ".csv" else path.parent])
            return bool(read.comparisons()) and not read.skipped
    except (RunError, WireError):
        return False
    finally:
        path.write_bytes(before)
