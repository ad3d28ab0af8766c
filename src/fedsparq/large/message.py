"""Messages in files, and adding them to a model, some layers at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedsparq import threads as threading
from fedsparq.archive import replacing
from fedsparq.errors import OptionError, UpdateError, WireError
from fedsparq.large.container import About, MessageReader, difference
from fedsparq.large.pieces import Piece
from fedsparq.large.tensors import FLOATS, SafetensorsFile, rounded_to
from fedsparq.payload import Payload
from fedsparq.payload.values import LARGEST_FLOAT32


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
        """Return the pieces in order. Only after the last one is the message known to be right."""
        with opened(self.path) as reader:
            yield from reader.payloads(threads)

    def check(self, threads: int | None = None) -> str:
        """Read the message and return its checksum; WireError unless it is exactly right."""
        with opened(self.path) as reader:
            for _ in reader.payloads(threads):
                pass
            return reader.checksum

    def add_to(self, arrays: Mapping[str, NDArray[Any]], weight: float = 1.0, threads: int | None = None) -> None:
        """Add the update to float32 arrays in place, after the entire message was found right."""
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
            for part, values in piece.split(update):
                flat[part.name][part.start : part.stop] += values


def apply(
    model: Path | str,
    messages: Sequence[Path | str],
    out: Path | str,
    *,
    weights: Sequence[float] | None = None,
    threads: int | None = None,
) -> None:
    """Write a model plus the weighted sum of some messages; by default their mean.

    The new file appears when every message has been read to its end and found right; otherwise nothing changes. Tensors
    keep their types; those that no message has stay unchanged. `out` may be the model itself.
    """
    old = SafetensorsFile(model)
    if not messages:
        raise OptionError("give at least one message to apply")
    shares = list(weights) if weights is not None else [1 / len(messages)] * len(messages)
    if len(shares) != len(messages):
        raise OptionError(f"there are {len(messages)} messages and {len(shares)} weights; give one for each")
    if not all(abs(share) <= LARGEST_FLOAT32 for share in shares):
        raise OptionError(f"the weights {shares} are not all finite")
    with ExitStack() as stack:
        readers = [stack.enter_context(opened(Path(path))) for path in messages]
        _check(old, readers, messages)
        file = stack.enter_context(replacing(Path(out)))
        _write(old, readers, shares, file, threading.resolve_threads(threads))


def _check(model: SafetensorsFile, readers: Sequence[MessageReader], messages: Sequence[Path | str]) -> None:
    first = readers[0].about
    for path, reader in zip(messages, readers, strict=True):
        if list(reader.about.shapes.items()) != list(first.shapes.items()):
            raise WireError(f"{path} is for another model: {difference(first.shapes, reader.about.shapes)}")
        if (reader.about.group, reader.about.cut) != (first.group, first.cut):
            raise WireError(f"{path} is cut into other pieces than {messages[0]}")
    own = {name: shape for name, shape in model.shapes.items() if name in first.shapes}
    if own != dict(first.shapes):
        raise WireError(f"{messages[0]} is for another model than {model.path}: {difference(own, first.shapes)}")
    for name in first.shapes:
        if model.entries[name].dtype not in FLOATS:
            raise WireError(f"tensor {name!r} of {model.path} is of {model.entries[name].dtype}, not of floats")


def _write(
    model: SafetensorsFile, readers: Sequence[MessageReader], shares: Sequence[float], file: BinaryIO, threads: int
) -> None:
    with model.path.open("rb") as old:
        file.write(old.read(model.start))
    file.truncate(model.start + model.data.size)
    for found in zip(*(reader.payloads(threads) for reader in readers), strict=True):
        piece = found[0][0]
        total = np.zeros(piece.size, np.float32)
        for (_, payload), share in zip(found, shares, strict=True):
            payload.add_to(total, share)
        for part, change in piece.split(total):
            entry = model.entries[part.name]
            with np.errstate(over="ignore"):
                rounded = rounded_to(entry.dtype, model.part(part.name, part.start, part.stop) + change)
            file.seek(model.start + entry.first + part.start * rounded.dtype.itemsize)
            file.write(rounded.data)
    for name in model.entries.keys() - readers[0].about.shapes.keys():
        file.seek(model.start + model.entries[name].first)
        file.write(model.raw(name).data)


@contextmanager
def opened(path: Path) -> Iterator[MessageReader]:
    """Open a file and read its header; the file is closed at the end."""
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
