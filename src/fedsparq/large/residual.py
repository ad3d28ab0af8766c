"""The residual of a large model, in a safetensors file whose header is the record of what was sent.

The file is never changed: a new one is written beside it, and takes its name in one step. With that step the message
that the new header names counts as made; until then there is neither.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import xxhash

from fedsparq.archive import SCRATCH, ArchiveError, create, pack, sync_folder, tensor_header, unpack
from fedsparq.archive import locked as lock
from fedsparq.errors import RunError, UpdateError
from fedsparq.large.pieces import Piece, Shapes
from fedsparq.large.tensors import SafetensorsFile
from fedsparq.layout import Arrays, Vector

_KEY = "fedsparq-residual"
_STATE = "fedsparq.state"
_VERSION = 1
_DIGITS = "0" * 16


@dataclass(frozen=True)
class Record:
    """What a residual states of itself, and of the last message."""

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

    def __init__(self, path: Path) -> None:
        self.path, self._digest = path, xxhash.xxh3_64()
        self._file: SafetensorsFile | None = None
        self.record: Record | None = None
        self.states: Arrays = {}
        """What the method keeps of each piece besides the residual, and of the whole, by `piece.name`."""
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
        """Return the shapes of its tensors: none if nothing was sent yet, or the method keeps no residual."""
        return {} if self._file is None else self._file.shapes

    def piece(self, piece: Piece) -> Vector | None:
        """Return a piece of the residual; None if it has no tensors."""
        return piece.gather(self._file) if self._file and self.shapes else None

    def passed(self, vector: Vector) -> None:
        """Note that a piece was read, in the order of the file; `check` compares."""
        self._digest.update(vector.data)

    def check(self) -> None:
        """Raise RunError unless all pieces were read as they were written."""
        if self._file is not None and self._digest.hexdigest() != self._expected:
            raise RunError(f"the residual {self.path} was damaged after it was written; it is left there")


class NewResidual:
    """The residual of the next round, under another name until it is committed."""

    def __init__(self, path: Path, shapes: Shapes) -> None:
        self._path, self._scratch = path, scratch_of(path)
        self._tensors, self._digest = {name: ("F32", shape) for name, shape in shapes.items()}, xxhash.xxh3_64()
        self._file = create(self._scratch, private=True)
        self._reserved = -1

    def begin(self, record: Record, states_bytes: int) -> None:
        """Leave room for the header, which is written last."""
        longest = replace(record, round=10**18, restored=(*record.restored, 10**18))
        self._reserved = -(-(len(self._header(longest, b" " * states_bytes)) + 4096) // 4096) * 4096
        self._file.seek(self._reserved)

    def add(self, vector: Vector) -> None:
        self._file.write(vector.data)
        self._digest.update(vector.data)

    def commit(self, record: Record, states: Arrays) -> None:
        """Write the header, and take the old one's place: from here on the record holds."""
        header = self._header(record, pack({}, states), self._reserved)
        if len(header) > self._reserved:
            raise RunError("the state of the method has grown while it compressed: its residual cannot be written")
        self._file.seek(0)
        self._file.write(header)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._scratch, self._path)
        sync_folder(self._path.parent)

    def discard(self) -> None:
        self._file.close()
        self._scratch.unlink(missing_ok=True)

    def _header(self, record: Record, states: bytes, size: int = 0) -> bytes:
        about = json.dumps([json.dumps(asdict(record)), self._digest.hexdigest()])
        return tensor_header({_KEY: about, _STATE: base64.b64encode(states).decode()}, self._tensors, size)


def scratch_of(residual: Path) -> Path:
    """Return where the next residual is written before it takes the place of this one."""
    return residual.with_name(f".{residual.name}{SCRATCH}")


def locked(residual: Path) -> AbstractContextManager[None]:
    """Keep other processes away from a residual; RunError if another process works on it."""
    return lock(residual.with_name(f".{residual.name}.lock"))
