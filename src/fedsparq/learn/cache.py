"""Decoded data sets on disk as plain .npy files, which many processes map into memory at once."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedsparq.learn.source import Splits, Table

_FORMAT = 1
_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
_BROKEN = (OSError, ValueError, KeyError, TypeError, EOFError)


@dataclass(frozen=True)
class Decoded:
    """All arrays of a data set, and what else must be known of it."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def folder_key(hub_id: str, folder: Path) -> str:
    """A name for what a folder holds now: it changes with any file's path, size or time."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    facts = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return _key(hub_id, ["folder", str(folder), facts])


def hub_key(hub_id: str) -> str:
    """A name for a set of the hub; what was decoded once is used until the cache is emptied."""
    return _key(hub_id, ["hub", hub_id])


def find(key: str) -> Path | None:
    """The folder of a kept set, unchecked."""
    folder = _root() / key
    return folder if folder.is_dir() else None


def read(key: str) -> Decoded | None:
    """A kept set, mapped read-only; None if it was never kept or fails its checksums."""
    folder = _root() / key
    try:
        facts = json.loads((folder / "facts.json").read_text("utf-8"))
        arrays = {name: _checked(folder / f"{name}.npy", facts["checksums"][name]) for name in _ARRAYS}
        return Decoded(**arrays, classes=tuple(facts["classes"]), mean=tuple(facts["mean"]), std=tuple(facts["std"]))
    except _BROKEN:
        return None


def write(key: str, opened: AbstractContextManager[Splits]) -> Decoded:
    """Decode a set into the cache, in a folder of its own that gets its name only when it is complete."""
    root = _root()
    root.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=root))
    try:
        with opened as splits:
            for name, table in (("train", splits.train), ("test", splits.test)):
                _write_images(scratch / f"{name}_images.npy", table)
                np.save(scratch / f"{name}_labels.npy", table.labels, allow_pickle=False)
            mean, std = pixel_statistics(np.load(scratch / "train_images.npy", mmap_mode="r"))
            facts = {
                "classes": splits.classes,
                "mean": mean,
                "std": std,
                "checksums": {name: _checksum(scratch / f"{name}.npy") for name in _ARRAYS},
            }
        (scratch / "facts.json").write_text(json.dumps(facts), "utf-8")
        return _publish(scratch, root / key)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def pixel_statistics(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel on the scale 0 to 1, from exact counts of each pixel value."""
    values = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = np.zeros(256, np.int64)
        for start in range(0, len(images), 4096):
            counts += np.bincount(images[start : start + 4096, channel].ravel(), minlength=256)
        mean = float(counts @ values / counts.sum())
        deviation = float(np.sqrt(counts @ (values - mean) ** 2 / counts.sum()))
        means.append(mean)
        deviations.append(deviation or 1.0)
    return tuple(means), tuple(deviations)


def _root() -> Path:
    own = os.environ.get("FEDSPARQ_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedsparq"


def _key(hub_id: str, facts: list[Any]) -> str:
    digest = xxhash.xxh3_64_hexdigest(json.dumps([_FORMAT, facts]).encode())
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', hub_id)}-{digest}"


def _checksum(path: Path) -> str:
    return xxhash.xxh3_64_hexdigest(np.memmap(path, np.uint8, "r").data)


def _checked(path: Path, checksum: str) -> NDArray[Any]:
    if _checksum(path) != checksum:
        raise ValueError(f"{path} is damaged")
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _write_images(path: Path, table: Table) -> None:
    images = np.lib.format.open_memmap(path, "w+", np.uint8, (len(table.labels), *table.shape))
    for position, image in enumerate(table.images()):
        images[position] = image
    images.flush()


def _publish(scratch: Path, folder: Path) -> Decoded:
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
