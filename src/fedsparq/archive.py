"""safetensors files, with a checksum where they are our own; files that survive a crash; and locks."""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedsparq.errors import FedSparQError, RunError

SCRATCH = ".tmp"
"""How the name of a file ends that is not yet written to its end."""

_DTYPES = {
    f"{kind}{8 * size}".upper(): np.dtype(f"<{kind}{size}").str
    for kind, sizes in {"f": (2, 4, 8), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8)}.items()
    for size in sizes
} | {"BOOL": "|b1"}
"""numpy's types by safetensors' names. Its own writer and reader copy large arrays several times."""
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_SIZES = {name: np.dtype(dtype).itemsize for name, dtype in _DTYPES.items()} | {"BF16": 2}
_MAX_HEADER = 100_000_000
"""What the safetensors library itself accepts."""

_MAX_DIMENSIONS = 64
"""As many as numpy has."""

_KEY = "fedsparq"
"""The one entry of the file's metadata: safetensors writes several in any order."""


class ArchiveError(FedSparQError):
    """A file that is not one of ours, or not as it was written."""


TypeAndShape = tuple[str, Sequence[int]]


class Entry(NamedTuple):
    """The type and shape of a tensor in a safetensors file, and where it lies after the header."""

    dtype: str
    shape: tuple[int, ...]
    first: int
    end: int


class TensorFile:
    """A safetensors file in memory, or mapped into it; tensors in the order in which they lie."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        try:
            length = int.from_bytes(data[:8], "little")
            if not 0 < length <= min(_MAX_HEADER, len(data) - 8):
                raise ValueError(f"a header of {length:,} bytes does not fit a file of {len(data):,}")
            header = json.loads(bytes(data[8 : 8 + length]))
            self.metadata: dict[str, str] = header.pop("__metadata__", {})
            entries = {str(name): _entry(**about) for name, about in header.items()}
            self.entries = dict(sorted(entries.items(), key=lambda item: item[1][2:]))
            end = 0
            for name, entry in self.entries.items():
                if entry.first != end:
                    raise ValueError(f"tensor {name!r} overlaps, or leaves a gap")
                end = entry.end
            if 8 + length + end != len(data):
                raise ValueError(f"it has {len(data):,} bytes, its header states {8 + length + end:,}")
        except (ValueError, TypeError, OverflowError, AttributeError, RecursionError) as error:
            raise ArchiveError(f"it is not a safetensors file: {str(error)[:200]}") from None
        self.start = 8 + length
        self.data: NDArray[np.uint8] = np.frombuffer(data, np.uint8)[self.start :]

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor; they are not copied."""
        return self.data[self.entries[name].first : self.entries[name].end]

    def array(self, name: str) -> NDArray[Any]:
        """Return a tensor; it is not copied."""
        entry = self.entries[name]
        if entry.dtype not in _DTYPES:
            raise ArchiveError(f"tensor {name!r} is of {entry.dtype}, which is not read here")
        return self.raw(name).view(_DTYPES[entry.dtype]).reshape(entry.shape)


def _entry(dtype: str, shape: list[int], data_offsets: list[int]) -> Entry:
    first, end = data_offsets
    is_sound = len(shape) <= _MAX_DIMENSIONS and all(type(n) is int and 0 <= n < 2**63 for n in (first, end, *shape))
    if not is_sound or end - first != math.prod(shape) * _SIZES.get(dtype, 1):
        raise ValueError(f"a tensor of {dtype}{shape} cannot lie at {data_offsets}")
    return Entry(dtype, tuple(shape), first, end)


def tensor_header(metadata: Mapping[str, str], tensors: Mapping[str, TypeAndShape], size: int = 0) -> bytes:
    """Return a safetensors file up to its first tensor, of at least `size` bytes."""
    header, at = dict[str, Any](__metadata__=metadata), 0
    for name, (dtype, shape) in tensors.items():
        end = at + math.prod(shape) * _SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * max(-len(text) % 8, size - 8 - len(text))
    return len(text).to_bytes(8, "little") + text


def pack(about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes of a file. safetensors itself has no checksum: ours covers the facts and every array."""
    return b"".join(pack_parts(about, arrays))


def pack_parts(about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> list[bytes | memoryview]:
    """Return the bytes of a file in parts, so that large arrays are not copied."""
    text, own = json.dumps(about), {name: _plain(array) for name, array in arrays.items()}
    for name, array in own.items():
        if array.dtype.str not in _NAMES:
            raise ArchiveError(f"only arrays of numbers can be saved: {name!r} is of {array.dtype}")
    own = dict(sorted(own.items(), key=lambda item: (-item[1].dtype.alignment, item[0])))
    tensors = {name: (_NAMES[array.dtype.str], array.shape) for name, array in own.items()}
    header = tensor_header({_KEY: json.dumps([text, _checksum(text, own)])}, tensors)
    return [header, *(array.reshape(-1).view(np.uint8).data for array in own.values())]


def unpack(data: bytes | memoryview, writable: bool = True) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Undo `pack`, or raise ArchiveError. Arrays that need not be `writable`, or are already, are not copied."""
    view = memoryview(data)
    file = TensorFile(bytearray(view) if writable and view.readonly else view)
    arrays = {name: file.array(name) for name in file.entries}
    try:
        text, expected = json.loads(file.metadata[_KEY])
        about: dict[str, Any] = json.loads(text)
        if not isinstance(about, dict):
            raise TypeError("its facts have no names")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArchiveError(f"it is not a file of FedSparQ's: {error}") from None
    if _checksum(text, arrays) != expected:
        raise ArchiveError("its checksum does not match: it was damaged after it was written")
    return about, arrays


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in the order and with the bytes that the file has; safetensors takes memory as it lies."""
    array = np.asarray(array)
    return array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)


def _checksum(text: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = xxhash.xxh3_64(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return str(digest.hexdigest())


def map_file(path: Path, access: int = mmap.ACCESS_READ) -> memoryview:
    """Map a file: what is not read takes no memory. The file must not change, but another may take its name."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), size, access=access) if size else b"")


def read_writable(path: Path) -> memoryview:
    """Map a file as memory of the reader's own: `unpack` copies no array, and changes do not reach the file."""
    return map_file(path, mmap.ACCESS_COPY)


def rest(data: memoryview) -> None:
    """Take a mapped file out of memory until it is next read. Nothing of it may have been changed."""
    if isinstance(data.obj, mmap.mmap):
        data.obj.madvise(mmap.MADV_DONTNEED)


def exclusive(folder: Path) -> AbstractContextManager[None]:
    """Hold the lock of a folder, which is created if it is missing; wait while another thread or process holds it.

    It cannot be taken twice by one thread: that waits for ever. The kernel releases it when its process ends.
    """
    return locked(folder / "lock", wait=True)


@contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a file, created with its folder if it is missing; RunError if it is held and not to wait for."""
    with ExitStack() as stack:
        try:
            while True:
                make_folder(path.parent, private=True)
                file = stack.enter_context(open_lock(path))
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                if is_at(file.fileno(), path):
                    break
                stack.close()  # the folder was removed while this waited
        except BlockingIOError:
            raise RunError(f"{path} is held by another process; wait until it ends") from None
        except OSError as error:
            raise RunError(f"{path} cannot be locked: {error.strerror or error}") from error
        yield


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one of this name: its folder may have been removed since."""
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


@contextmanager
def replacing(path: Path, *, private: bool = False, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a new file that takes the name `path` when the block ends; if anything fails, what was there stays.

    A `private` file, and the folders that are made for it, are their owner's alone (0600 and 0700). A file that need
    not survive a power failure is not `durable`, and not waited for.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{SCRATCH}")
    try:
        make_folder(path.parent, private, durable)
        with create(scratch, private) as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(scratch, path)
        if durable:
            sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise RunError(
                f"could not write {path}: {error.strerror or error}; nothing that was there is lost"
            ) from error
        raise


def write_safely(
    path: Path, data: bytes | Sequence[bytes | memoryview], *, private: bool = False, durable: bool = True
) -> None:
    """Write a file, in one part or several, so that at any moment either the old or the new one is there, whole."""
    with replacing(path, private=private, durable=durable) as file:
        file.writelines([data] if isinstance(data, bytes) else data)


def make_folder(folder: Path, private: bool = False, durable: bool = True) -> None:
    """Make a folder and those above it; if `durable`, they are still there after a power failure."""
    if folder.exists():
        return
    make_folder(folder.parent, private, durable)
    folder.mkdir(0o700 if private else 0o777, exist_ok=True)
    if durable:
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
