"""Load a data set by name: embedded, from a local folder or file, from the Hugging Face hub, or by a user's function.

What had to be decoded is kept in the cache as plain .npy files, which many processes map into memory at once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from fedsparq.errors import DataError, MissingExtraError, OptionError, did_you_mean
from fedsparq.imports import call_checked, load_function
from fedsparq.lab.tasks.dataset import Dataset, Split, strata
from fedsparq.lab.tasks.partition import stratified_order

_EMBEDDED = "mnist-mini"
_KNOWN = {
    "mnist": ("ylecun/mnist", 10, 60_000, 10_000),
    "fashion-mnist": ("zalando-datasets/fashion_mnist", 10, 60_000, 10_000),
    "cifar10": ("uoft-cs/cifar10", 10, 50_000, 10_000),
    "shakespeare": ("karpathy/tiny_shakespeare/by_speaker", 65, 11_545, 1_535),
}
"""By name: hub id or folder, number of classes, train examples, test examples."""

_LIMIT_SEED = 20_251_105
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CACHE_FORMAT = 3
_CACHED_FACTS = ("classes", "mean", "std", "text", "target_std", "remark")
_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, DataError)


class Columns(NamedTuple):
    """Columns of a table as the user named them; an empty name stands for the usual ones."""

    label: str = ""
    client: str = ""
    window: int = 80
    """Characters of a text per example."""


@dataclass(frozen=True)
class CatalogueRow:
    """A data set known by name, and where it would be read from: a folder, "embedded" or "not here" (the hub)."""

    name: str
    hub_id: str
    classes: int
    train: int
    test: int
    where: str


def load(
    name: str,
    *,
    train_limit: int | None = None,
    test_limit: int | None = None,
    columns: Columns | None = None,
    options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Load a data set by name, hub id, folder, or ``package.module:function`` that returns a `Dataset`.

    A hub id is looked for in ``$FEDSPARQ_DATASETS/<hub id>``, then in the working folder, then on the hub. `options`
    are those of a user's function. A limit takes the first n of a fixed stratified shuffle, so that a smaller set is
    the same each time, has the classes of the full one, and is part of every larger one.
    """
    full = _load_full(name, columns or Columns(), dict(options or {}))
    train, order = _limited(full.train, train_limit, "train_limit")
    test, _ = _limited(full.test, test_limit, "test_limit")
    owners = full.owners if full.owners is None or order is None else full.owners[order]
    return replace(full, train=train, test=test, owners=owners, name=name)


def catalogue() -> list[CatalogueRow]:
    """List the data sets known by name."""
    rows = [CatalogueRow(_EMBEDDED, "", 10, 10_000, 2_000, "embedded")]
    for name, (hub_id, classes, train, test) in _KNOWN.items():
        found = _shared_folder(hub_id) or cache_folder(hub_id, None, Columns())
        rows.append(CatalogueRow(name, hub_id, classes, train, test, str(found) if found.is_dir() else "not here"))
    return rows


def find(name: str) -> tuple[str, Path | None]:
    """Return the name of a set and the folder or file that holds it; None if it must come from the hub."""
    hub_id = _KNOWN[name][0] if name in _KNOWN else name
    shared = _shared_folder(hub_id) if hub_id.count("/") in (1, 2) else None
    if shared is not None:
        return hub_id, shared
    here = Path(name).expanduser()
    if name and name not in _KNOWN and here.exists():
        return here.resolve().name, here.resolve()
    if _HUB_ID.fullmatch(hub_id):
        return hub_id, None
    if name in _KNOWN:
        raise DataError(f"data set {name!r} is not here: it is read from the folder {hub_id} in $FEDSPARQ_DATASETS")
    known = ", ".join((_EMBEDDED, *_KNOWN))
    forms = "a folder that exists, a hub id such as owner/name, or package.module:function"
    meant = did_you_mean(name, (_EMBEDDED, *_KNOWN))
    raise OptionError(f"unknown data set {name!r}; {meant}choose from {known}, or give {forms}")


def cache_folder(hub_id: str, source: Path | None, columns: Columns) -> Path:
    """Return the cache folder of a set. It changes with the path, size or time of any file of `source`; a set of the
    hub, without `source`, is used from the cache until the cache is emptied."""
    facts: list[Any] = ["hub", hub_id]
    if source is not None:
        files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
        facts = ["folder", str(source), [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]]
    digest = xxhash.xxh3_64_hexdigest(json.dumps([_CACHE_FORMAT, facts, list(columns)]).encode())
    root = os.environ.get("FEDSPARQ_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "fedsparq")
    return Path(root).expanduser() / f"{re.sub(r'[^A-Za-z0-9]+', '-', hub_id).strip('-')}-{digest}"


def _load_full(name: str, columns: Columns, options: dict[str, Any]) -> Dataset:
    if ":" in name:
        return _from_function(name, options)
    if options:
        raise OptionError(f"dataset_options are for a function package.module:function; {name!r} is none")
    if name == _EMBEDDED:
        return _embedded()
    hub_id, source = find(name)
    folder = cache_folder(hub_id, source, columns)
    cached = _read_cached(folder)
    if cached is not None:
        return cached
    try:
        return _cache(folder, lambda scratch: _decode(hub_id, source, columns, scratch))
    except (OSError, ValueError) as error:
        raise DataError(
            f"cannot decode data set {name!r} into the cache: {error} (FEDSPARQ_CACHE names another place for it)"
        ) from error


def _embedded() -> Dataset:
    with (
        resources.files("fedsparq.lab.tasks").joinpath("mnist_mini.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        train, test = (
            (arrays[f"{split}_images"][:, None], arrays[f"{split}_labels"].astype(np.int64))
            for split in ("train", "test")
        )
    return Dataset(train, test, tuple("0123456789"))


def _from_function(name: str, options: dict[str, Any]) -> Dataset:
    made = call_checked(f"data set {name!r}", load_function(name, "data set"), options, ())
    if not isinstance(made, Dataset):
        raise OptionError(
            f"data set {name!r} gave a {type(made).__name__}; "
            "it must return fedsparq.Dataset(train=(x, y), test=(x, y))"
        )
    return made


def _decode(hub_id: str, source: Path | None, columns: Columns, scratch: Path) -> Dataset:
    """Read a set with the `datasets` library; images are decoded into the scratch folder."""
    try:
        from fedsparq.lab.tasks.decode import decode
    except ImportError as error:
        raise MissingExtraError("reading data sets needs `datasets`: pip install 'fedsparq[lab]'") from error
    with tempfile.TemporaryDirectory(prefix="fedsparq-") as temporary:
        found = load_from_hub(hub_id) if source is None else _load_from_disk(source, temporary)
        return decode(hub_id if source is None else str(source), found, columns, scratch)


def _load_from_disk(source: Path, temporary: str) -> Any:
    import datasets

    progress_shown = not datasets.utils.are_progress_bars_disabled()
    datasets.utils.disable_progress_bars()
    try:
        if any((source / name).is_file() for name in ("dataset_dict.json", "state.json")):
            saved = datasets.load_from_disk(str(source))
            return saved if isinstance(saved, dict) else {"train": saved}
        if source.is_file():
            return datasets.load_dataset(str(source.parent), data_files=source.name, cache_dir=temporary)
        return datasets.load_dataset(str(source), cache_dir=temporary)
    except Exception as error:  # the library raises many kinds, down to plain Exception
        raise DataError(f"cannot read a data set from {source}: {_first_line(error)}") from error
    finally:
        if progress_shown:
            datasets.utils.enable_progress_bars()


def load_from_hub(hub_id: str) -> Any:
    """Load a set from the Hugging Face hub."""
    import datasets
    import huggingface_hub

    try:
        if not huggingface_hub.is_offline_mode():  # one quick request, where load_dataset would retry for 20 seconds
            huggingface_hub.HfApi().dataset_info(hub_id, timeout=10)
        return datasets.load_dataset(hub_id)
    except Exception as error:  # as above, and every kind of network failure
        raise DataError(
            f"data set {hub_id!r} is not in $FEDSPARQ_DATASETS, and the hub did not give it ({_first_line(error)}). "
            f"Fetch it where there is a network: hf download --repo-type dataset {hub_id} --local-dir DIR/{hub_id}, "
            "then set FEDSPARQ_DATASETS=DIR"
        ) from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _read_cached(folder: Path) -> Dataset | None:
    """Map a cached set read-only; None if it is not there or damaged."""
    try:
        facts = json.loads((folder / "facts.json").read_text("utf-8"))
        arrays = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in folder.glob("*.npy")}
        train, test = ((arrays[f"{role}_x"], arrays[f"{role}_y"]) for role in ("train", "test"))
        return Dataset(train, test, owners=arrays.get("owners"), **{name: facts[name] for name in _CACHED_FACTS})
    except _DAMAGED:
        return None


def _cache(folder: Path, decode: Callable[[Path], Dataset]) -> Dataset:
    """Write a set to a scratch folder, and rename that when it is complete.

    `decode` may leave large arrays in the scratch folder, as ``train_x.npy`` and ``test_x.npy``.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        decoded = decode(scratch)
        arrays = {
            f"{role}_{part}": array
            for role in ("train", "test")
            for part, array in zip("xy", getattr(decoded, role), strict=True)
        }
        if decoded.owners is not None:
            arrays["owners"] = decoded.owners
        for name, array in arrays.items():
            if not (scratch / f"{name}.npy").exists():
                np.save(scratch / f"{name}.npy", array, allow_pickle=False)
        facts = {name: getattr(decoded, name) for name in _CACHED_FACTS}
        (scratch / "facts.json").write_text(json.dumps(facts), "utf-8")
        if _read_cached(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # another process may have been first: its copy is equal
            os.rename(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    cached = _read_cached(folder)
    if cached is None:
        raise OSError(f"the cache in {folder} cannot be read back; check the disk, or set FEDSPARQ_CACHE")
    return cached


def _shared_folder(hub_id: str) -> Path | None:
    root = os.environ.get("FEDSPARQ_DATASETS")
    folder = Path(root, hub_id).resolve() if root and ".." not in hub_id and not hub_id.startswith("/") else None
    return folder if folder is not None and folder.is_dir() else None


def _limited(split: Split, limit: int | None, option: str) -> tuple[Split, Any]:
    if limit is None:
        return split, None
    x, y = split
    if not 1 <= limit <= len(y):
        raise OptionError(f"{option} must be from 1 to {len(y)}, the size of the split; got {limit}")
    chosen = stratified_order(strata(y), np.random.default_rng(_LIMIT_SEED))[:limit]
    return (x[chosen], y[chosen]), chosen
