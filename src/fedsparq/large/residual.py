"""The residual of a large model, in a safetensors file whose header is the record of what was sent.

The file is never changed: a new one is written beside it, and takes its name in one step. With that step the message
that the new header names counts as made; until then there is neither.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedsparq.archive import SCRATCH, ArchiveError, create, make_folder, open_lock, pack, sync_folder, unpack
from fedsparq.errors import RunError, UpdateError
from fedsparq.large.pieces import Shapes
from fedsparq.large.tensors import SafetensorsFile
from fedsparq.layout import Vector

_KEY = "fedsparq-residual"
_STATE = "fedsparq.state"
_VERSION = 1
_DIGITS = "0" * 16

States = dict[str, NDArray[Any]]
"""What the method remembers of each piece beside the residual, and of the whole, by `piece.name`."""


@dataclass(frozen=True)
class Record:
    """What is known of a residual."""

    method: str
    """Its identity, as text."""
    tensors: str
    """A digest of the names and shapes."""
    group: int
    cut: int
    origin: str = field(default_factory=lambda: secrets.token_hex(8))
    round: int = 0
    message: str = ""
    """Where the last message was to lie."""
    checksum: str = _DIGITS
    """Of the last message."""
    restored: tuple[int, ...] = ()
    """Rounds whose messages were put back."""
    version: int = _VERSION


class Residual:
    """An existing residual, or one of zeros where there is no file yet."""

    def __init__(self, path: Path, shapes: Shapes | None = None) -> None:
        self.path, self._file, self._digest = path, None, xxhash.xxh3_64()
        self.record: Record | None = None
        self.states: States = {}
        if not path.exists():
            return
        try:
            self._file = SafetensorsFile(path)
            text, expected = json.loads(self._file.metadata[_KEY])
            fields = json.loads(text)
            if fields.get("version") != _VERSION:
                raise RunError(f"the residual {path} is of version {fields.get('version')}; this one reads {_VERSION}")
            self.record = Record(**fields | {"restored": tuple(fields["restored"])})
            self._expected = str(expected)
            _, self.states = unpack(base64.b64decode(self._file.metadata[_STATE]))
        except (UpdateError, ArchiveError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise RunError(f"the residual {path} cannot be read: {error}; it is left there") from None

    @property
    def shapes(self) -> Shapes:
        return {} if self._file is None else self._file.shapes

    def part(self, name: str, start: int, stop: int) -> Vector | None:
        """Some of it; None where nothing was sent yet, or the method keeps no residual."""
        return None if self._file is None or name not in self._file.entries else self._file.part(name, start, stop)

    def passed(self, vector: Vector) -> None:
        """Note that a part was read, in the order of the file; `check` compares."""
        self._digest.update(vector.data)

    def check(self) -> None:
        """An error if what was read is not what was written."""
        if self._file is not None and self._digest.hexdigest() != self._expected:
            raise RunError(f"the residual {self.path} was damaged after it was written; it is left there")


class NewResidual:
    """The residual of the next round, under another name until it is committed."""

    def __init__(self, path: Path, shapes: Shapes) -> None:
        self._path, self._scratch = path, path.with_name(f".{path.name}{SCRATCH}")
        self._shapes, self._digest = shapes, xxhash.xxh3_64()
        self._file = create(self._scratch, private=True)
        self._reserved = -1

    def begin(self, record: Record, states_bytes: int) -> None:
        """Leave room for the header, which is written last."""
        about = asdict(record) | {"round": 10**18, "restored": [*record.restored, 10**18]}
        room = len(self._header(json.dumps(about), b" " * states_bytes, _DIGITS)) + 4096
        self._reserved = -(-room // 4096) * 4096
        self._file.seek(self._reserved)

    def add(self, vector: Vector) -> None:
        self._file.write(vector.data)
        self._digest.update(vector.data)

    def commit(self, record: Record, states: Mapping[str, NDArray[Any]]) -> None:
        """Write the header, and take the old one's place: from here on the record holds."""
        header = self._header(json.dumps(asdict(record)), pack({}, states), self._digest.hexdigest())
        if 8 + len(header) > self._reserved:
            raise RunError("the state of the method has grown while it compressed: its residual cannot be written")
        header += b" " * (self._reserved - 8 - len(header))
        self._file.seek(0)
        self._file.write(len(header).to_bytes(8, "little") + header)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._scratch, self._path)
        sync_folder(self._path.parent)

    def discard(self) -> None:
        self._file.close()
        self._scratch.unlink(missing_ok=True)

    def _header(self, record: str, states: bytes, checksum: str) -> bytes:
        about = {_KEY: json.dumps([record, checksum]), _STATE: base64.b64encode(states).decode()}
        header: dict[str, Any] = {"__metadata__": about}
        at = 0
        for name, shape in self._shapes.items():
            size = 4 * int(np.prod(shape, dtype=np.int64))
            header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
            at += size
        return json.dumps(header).encode()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else may work on this residual meanwhile."""
    try:
        make_folder(path.parent, private=True)
        file = open_lock(path.with_name(f".{path.name}.lock"))
    except OSError as error:
        raise RunError(f"cannot write beside {path}: {error.strerror or error}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"another process is at work on the residual {path}") from None
        yield
