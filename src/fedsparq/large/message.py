"""A message in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import UpdateError, WireError
from fedsparq.large.container import About, MessageReader, difference
from fedsparq.large.pieces import Piece
from fedsparq.payload import Payload


class Message:
    """A message in a file, read a piece at a time.

    >>> from fedsparq.large import Message, compress
    >>> import numpy as np, tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> update = {"w": np.array([[1, 0.1], [-0.1, -3]], np.float32), "b": np.zeros(2, np.float32)}
    >>> sent = compress(update, folder / "residual.safetensors", folder / "message.fsq", method="fedsparq")
    >>> total = {name: np.zeros_like(array) for name, array in update.items()}
    >>> Message(folder / "message.fsq").add_to(total, weight=0.5)
    >>> total["w"].tolist()
    [[0.0, 0.0], [0.0, -1.5]]
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        with opened(self.path) as reader:
            self.about: About = reader.about

    def payloads(self, threads: int | None = None) -> Iterator[tuple[Piece, Payload]]:
        """The pieces in order. Only when the last has been taken is all of the message known to be right."""
        with opened(self.path) as reader:
            yield from reader.payloads(threads)

    def check(self, threads: int | None = None) -> str:
        """Read all of it; WireError for anything that is not exactly right. Returns its checksum."""
        with opened(self.path) as reader:
            for _ in reader.payloads(threads):
                pass
            return reader.checksum

    def add_to(self, arrays: Mapping[str, NDArray[Any]], weight: float = 1.0, threads: int | None = None) -> None:
        """Add the update to float32 arrays in place, once all of the message has been found right."""
        shapes = self.about.shapes
        own = {name: arrays[name].shape for name in shapes if name in arrays}
        if own != dict(shapes):
            raise WireError(f"{self.path} is for another model: {difference(own, shapes)}")
        flat = {name: _flat(name, arrays[name]) for name in shapes}
        self.check(threads)
        for piece, payload in self.payloads(threads):
            if len(piece.parts) == 1:
                (part,) = piece.parts
                payload.add_to(flat[part.name][part.start : part.stop], weight)
                continue
            update = np.zeros(piece.size, np.float32)
            payload.add_to(update, weight)
            at = 0
            for part in piece.parts:
                flat[part.name][part.start : part.stop] += update[at : at + part.size]
                at += part.size


@contextmanager
def opened(path: Path) -> Iterator[MessageReader]:
    """A reader of a file, which is closed in the end."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise WireError(f"cannot read {path}: {error.strerror or error}") from None
    with file:
        yield MessageReader(file)


def _flat(name: str, array: NDArray[Any]) -> NDArray[np.float32]:
    if array.dtype != np.float32 or not array.flags.c_contiguous or not array.flags.writeable:
        raise UpdateError(f"tensor {name!r}: give a float32 array to add to, in C order, that can be changed")
    return array.reshape(-1)
