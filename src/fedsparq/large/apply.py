"""Add messages to a model in a safetensors file, some layers at a time."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

from fedsparq import threads as threading
from fedsparq.archive import SCRATCH, create, make_folder, sync_folder
from fedsparq.errors import OptionError, RunError, WireError
from fedsparq.large.container import MessageReader, difference, same_tensors
from fedsparq.large.message import opened
from fedsparq.large.tensors import FLOATS, SafetensorsFile, rounded_to
from fedsparq.payload.values import LARGEST_FLOAT32


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
    keep their types; those that no message has stay as they are. `out` may be the model itself.
    """
    old, out = SafetensorsFile(model), Path(out)
    if not messages:
        raise OptionError("give at least one message to apply")
    shares = list(weights) if weights is not None else [1 / len(messages)] * len(messages)
    if len(shares) != len(messages):
        raise OptionError(f"there are {len(messages)} messages and {len(shares)} weights; give one for each")
    if not all(abs(share) <= LARGEST_FLOAT32 for share in shares):
        raise OptionError(f"the weights {shares} are not all finite")
    scratch = out.with_name(f".{out.name}.{os.getpid()}-{secrets.token_hex(4)}{SCRATCH}")
    with ExitStack() as stack:
        readers = [stack.enter_context(opened(Path(path))) for path in messages]
        _check(old, readers, messages)
        try:
            make_folder(out.parent)
            _write(old, readers, shares, scratch, threading.count_of(threads))
            os.replace(scratch, out)
            sync_folder(out.parent)
        except OSError as error:
            raise RunError(f"could not write {error.filename or out}: {error.strerror or error}") from error
        finally:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)


def _check(model: SafetensorsFile, readers: Sequence[MessageReader], messages: Sequence[Path | str]) -> None:
    first = readers[0].about
    for path, reader in zip(messages, readers, strict=True):
        same_tensors(first.shapes, reader.about.shapes, str(path))
        if (reader.about.group, reader.about.cut) != (first.group, first.cut):
            raise WireError(f"{path} is cut into other pieces than {messages[0]}")
    own = {name: entry.shape for name, entry in model.entries.items() if name in first.shapes}
    if own != dict(first.shapes):
        raise WireError(f"{messages[0]} is for another model than {model.path}: {difference(own, first.shapes)}")
    for name in first.shapes:
        if model.entries[name].dtype not in FLOATS:
            raise WireError(f"tensor {name!r} of {model.path} is of {model.entries[name].dtype}, not of floats")


def _write(
    model: SafetensorsFile, readers: Sequence[MessageReader], shares: Sequence[float], path: Path, threads: int
) -> None:
    streams = [reader.payloads(threads) for reader in readers]
    with create(path) as file:
        with model.path.open("rb") as old:
            file.write(old.read(model.start))
        file.truncate(model.size)
        for found in zip(*streams, strict=True):
            piece = found[0][0]
            total = np.zeros(piece.size, np.float32)
            for (_, payload), share in zip(found, shares, strict=True):
                payload.add_to(total, share)
            at = 0
            for part in piece.parts:
                entry = model.entries[part.name]
                with np.errstate(over="ignore"):
                    values = model.part(part.name, part.start, part.stop) + total[at : at + part.size]
                    rounded = rounded_to(entry.dtype, values)
                width = rounded.dtype.itemsize
                file.seek(model.start + entry.first + part.start * width)
                file.write(rounded.data)
                at += part.size
        for name in model.entries.keys() - readers[0].about.shapes.keys():
            file.seek(model.start + model.entries[name].first)
            file.write(model.raw(name).data)
        file.flush()
        os.fsync(file.fileno())
