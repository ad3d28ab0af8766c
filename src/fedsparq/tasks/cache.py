"""Decoded data sets on disk as plain .npy files, which many processes map into memory at once."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedsparq.errors import DataError
from fedsparq.tasks.dataset import Dataset

_FORMAT = 2
_FACTS = ("classes", "mean", "std", "text", "target_std", "remark")
_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, DataError)


def key_of(hub_id: str, folder: Path | None = None, options: Sequence[Any] = ()) -> str:
    """A name for what a folder (or file) holds now, read with these options, which changes with any file's path, size
    or time; without one, for a set of the hub: what was decoded once is used until the cache is emptied."""
    facts: list[Any] = ["hub", hub_id]
    if folder is not None:
        files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else [folder]
        facts = ["folder", str(folder), [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]]
    digest = xxhash.xxh3_64_hexdigest(json.dumps([_FORMAT, facts, list(options)]).encode())
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', hub_id).strip('-')}-{digest}"


def find(key: str) -> Path | None:
    """The folder of a kept set, unchecked."""
    folder = _root() / key
    return folder if folder.is_dir() else None


def read(key: str) -> Dataset | None:
    """A kept set, mapped read-only; None if it was never kept or fails its checksums."""
    folder = _root() / key
    try:
        facts = json.loads((folder / "facts.json").read_text("utf-8"))
        arrays = {name: _checked(folder / f"{name}.npy", checksum) for name, checksum in facts["checksums"].items()}
        train, test = ((arrays[f"{role}_x"], arrays[f"{role}_y"]) for role in ("train", "test"))
        about: dict[str, Any] = {
            name: tuple(value) if isinstance(value := facts[name], list) else value for name in _FACTS
        }
        return Dataset(train, test, owners=arrays.get("owners"), **about)
    except _BROKEN:
        return None


def write(key: str, decode: Callable[[Path], Dataset]) -> Dataset:
    """Keep a set in a folder of its own that gets its name only when it is complete.

    `decode` may leave large arrays in the folder it is given, as ``train_x.npy`` and ``test_x.npy``.
    """
    root = _root()
    root.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=root))
    try:
        decoded = decode(scratch)
        arrays = {
            f"{role}_{part}": getattr(decoded, role)["xy".index(part)] for role in ("train", "test") for part in "xy"
        }
        if decoded.owners is not None:
            arrays["owners"] = decoded.owners
        for name, array in arrays.items():
            if not (scratch / f"{name}.npy").exists():
                np.save(scratch / f"{name}.npy", array, allow_pickle=False)
        facts: dict[str, Any] = {name: getattr(decoded, name) for name in _FACTS}
        facts["checksums"] = {name: _checksum(scratch / f"{name}.npy") for name in arrays}
        (scratch / "facts.json").write_text(json.dumps(facts), "utf-8")
        return _publish(scratch, root / key)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _root() -> Path:
    own = os.environ.get("FEDSPARQ_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedsparq"


def _checksum(path: Path) -> str:
    return xxhash.xxh3_64_hexdigest(np.memmap(path, np.uint8, "r").data)


def _checked(path: Path, checksum: str) -> NDArray[Any]:
    if _checksum(path) != checksum:
        raise ValueError(f"{path} is damaged")
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _publish(scratch: Path, folder: Path) -> Dataset:
    """Give a finished folder its name. Another process may have been first: then its equal copy is used."""
    if read(folder.name) is None:
        damaged = scratch.with_name(f"{scratch.name}-damaged")
        with suppress(FileNotFoundError):
            os.rename(folder, damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    try:
        os.rename(scratch, folder)
    except OSError:
        if not folder.is_dir():
            raise
    kept = read(folder.name)
    if kept is None:
        raise OSError(f"the cache in {folder} cannot be read back; check the disk, or set FEDSPARQ_CACHE")
    return kept
