"""Arrays and facts in one safetensors file that tells when it was damaged, files that survive a crash, and a lock."""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedsparq.errors import FedSparQError, RunError

SCRATCH = ".tmp"
"""How the name of a file ends that is not yet written to its end."""

_SIZES = {"f": (2, 4, 8), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8)}
_KINDS = {f"{kind}{8 * size}".upper(): np.dtype(f"<{kind}{size}").str for kind in _SIZES for size in _SIZES[kind]}
_KINDS["BOOL"] = "|b1"
_DTYPES = {kind: name for name, kind in _KINDS.items()}
"""safetensors' names. Its own writer and reader copy large arrays several times."""

_KEY = "fedsparq"
"""The one entry of the file's metadata: safetensors writes several in any order."""


class ArchiveError(FedSparQError):
    """A file that is not one of ours, or not as it was written."""


def pack(about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of a file. safetensors itself has no checksum: ours covers the facts and every array."""
    return b"".join(pack_parts(about, arrays))


def pack_parts(about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> list[bytes | memoryview]:
    """`pack`, one part after another: large arrays are not copied."""
    text, own = json.dumps(about), {name: _plain(array) for name, array in arrays.items()}
    for name, array in own.items():
        if array.dtype.str not in _DTYPES:
            raise ArchiveError(f"only arrays of numbers can be saved: {name!r} is of {array.dtype}")
    header: dict[str, Any] = {"__metadata__": {_KEY: json.dumps([text, _checksum(text, own)])}}
    parts, at = [], 0
    for name, array in sorted(own.items(), key=lambda item: (-item[1].dtype.alignment, item[0])):
        offsets = [at, at + array.nbytes]
        header[name] = {"dtype": _DTYPES[array.dtype.str], "shape": list(array.shape), "data_offsets": offsets}
        parts.append(array.reshape(-1).view(np.uint8).data)
        at += array.nbytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    return [len(encoded).to_bytes(8, "little"), encoded, *parts]


def unpack(data: bytes | memoryview, writable: bool = True) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What `pack` was given, or ArchiveError. Arrays that need not be `writable`, or are already, are not copied."""
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(bytes(data[8:start]))
        text, expected = json.loads(header.pop("__metadata__")[_KEY])
        found = memoryview(data)[start:]
        body = bytearray(found) if writable and found.readonly else found
        arrays = {name: _read(body, **entry) for name, entry in header.items()}
        about: dict[str, Any] = json.loads(text)
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError, RecursionError) as error:
        raise ArchiveError(f"it is not a file of FedSparQ's: {error}") from None
    if _checksum(text, arrays) != expected:
        raise ArchiveError("its checksum does not match: it was damaged after it was written")
    return about, arrays


def _read(body: bytearray | memoryview, dtype: str, shape: list[int], data_offsets: list[int]) -> NDArray[Any]:
    first, end = data_offsets
    kind, count = np.dtype(_KINDS[dtype]), math.prod(shape)
    if not 0 <= first <= end <= len(body) or end - first != count * kind.itemsize:
        raise ValueError("an array lies outside of the file")
    return np.frombuffer(body, kind, count, first).reshape(shape) if count else np.empty(shape, kind)


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """In the order and with the bytes that the file has; safetensors takes memory as it lies."""
    array = np.asarray(array)
    return array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)


def _checksum(text: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = xxhash.xxh3_64(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return str(digest.hexdigest())


def read_writable(path: Path) -> memoryview:
    """A file as its reader's own memory: `unpack` need not copy its arrays, and what is changed is not in the file.

    It is mapped: what is not looked at takes no memory. Nobody may change the file, but another may take its name.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else b"")


def rest(data: memoryview) -> None:
    """Take a mapped file out of memory until it is next looked at. Nothing of it may have been changed."""
    if isinstance(data.obj, mmap.mmap):
        data.obj.madvise(mmap.MADV_DONTNEED)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is created if it is missing; wait while another thread or process holds it.

    It cannot be taken twice by one thread: that waits for ever. The kernel releases it when its process ends.
    """
    descriptor = _locked(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _locked(folder: Path) -> int:
    path = folder / "lock"
    try:
        while True:
            make_folder(folder, private=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if is_at(descriptor, path):
                return descriptor
            os.close(descriptor)  # the folder was removed while this waited
    except OSError as error:
        raise RunError(f"{folder} cannot be locked: {error.strerror or error}") from error


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one of this name: its folder may have been removed since."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def remove_scratch(folder: Path) -> None:
    """Remove what killed processes had not written to the end; for who holds the folder's lock."""
    for path in folder.rglob(f".*.[0-9]*{SCRATCH}"):
        path.unlink(missing_ok=True)


def create(path: Path, private: bool = False) -> BinaryIO:
    """Create a file and open it for writing. FileExistsError if the name is taken, even by a link that leads nowhere.

    A `private` file is its owner's alone from the moment it exists; any other is as the umask says.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o600 if private else 0o666), "wb")


def open_lock(path: Path) -> BinaryIO:
    """Open a private file to lock, creating it if there is none. A symbolic link is not followed."""
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b")
    except OSError as error:
        raise RunError(f"cannot open {path} to lock it: {error.strerror or error}") from None


def write_safely(
    path: Path, data: bytes | Sequence[bytes | memoryview], *, private: bool = False, durable: bool = True
) -> None:
    """Write a file so that at any moment either the old or the new one is there, whole.

    A `private` file, and the folders that are made for it, are their owner's alone (0600 and 0700). `data` may come in
    several parts. What need not survive a power failure is not `durable`, and not waited for.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{SCRATCH}")
    try:
        make_folder(path.parent, private)
        with create(scratch, private) as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(scratch, path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise RunError(f"could not write {path}: {error.strerror or error}; nothing that was there is lost") from error


def make_folder(folder: Path, private: bool = False) -> None:
    """Make a folder and those above it, so that they are still there after a power failure."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(0o700 if private else 0o777, exist_ok=True)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
