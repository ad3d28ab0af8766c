"""One process at a time in a run's folder. The kernel lets go of the lock when its process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedsparq.archive import is_at
from fedsparq.errors import RunError

NAME = ".lock"


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """Make a folder, and those above it; those that stay empty are removed again."""
    with _cannot_hold(folder):
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):
            for path in missing:
                path.rmdir()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A folder that is `made`, and held; RunError if another process holds it."""
    with made(folder):
        with _cannot_hold(folder):
            descriptor = _take(folder)
        try:
            yield
        finally:
            with suppress(OSError):
                (folder / NAME).unlink(missing_ok=True)
            os.close(descriptor)


@contextmanager
def _cannot_hold(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"{folder} cannot hold results: {error.strerror or error}; choose another --out") from error


def _take(folder: Path) -> int:
    path = folder / NAME
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            held = f"{folder} is in use by process {owner or 'that just started'}"
            raise RunError(f"{held}; wait until it has ended, or choose another --out") from None
        except OSError as error:
            warnings.warn(f"{folder} cannot be locked ({error.strerror}): start one run in it only", stacklevel=5)
        if is_at(descriptor, path):
            break
        os.close(descriptor)  # its holder removed it in between
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor
