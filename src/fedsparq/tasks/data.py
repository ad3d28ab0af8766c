"""Data sets by name: embedded, from a local folder or file, from the Hugging Face hub, or of a user's own function."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fedsparq.errors import DataError, OptionError
from fedsparq.imports import load_function
from fedsparq.tasks import cache
from fedsparq.tasks.columns import Columns
from fedsparq.tasks.dataset import Dataset, Split, strata
from fedsparq.tasks.options import call_checked
from fedsparq.tasks.partition import stratified_order

__all__ = ["CatalogueRow", "Dataset", "Split", "catalogue", "load"]

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
    """A data set by name, hub id (``owner/name``), folder, or ``package.module:function`` that returns a `Dataset`.

    A hub id is looked for in ``$FEDSPARQ_DATASETS/<hub id>``, then in the working folder, then on the hub. What is not
    arrays already is decoded once and kept in the cache, from where all processes share one copy of it. `columns` says
    which are the label and the client; `options` are those of a user's function. A limit takes the first n of a fixed
    stratified shuffle, so that a smaller set is the same each time, has the classes of the whole, and is part of
    every larger one.
    """
    whole = _whole(name, columns or Columns(), dict(options or {}))
    train, order = _limited(whole.train, train_limit, "train_limit")
    test, _ = _limited(whole.test, test_limit, "test_limit")
    owners = whole.owners if whole.owners is None or order is None else whole.owners[order]
    return replace(whole, train=train, test=test, owners=owners, name=name)


def catalogue() -> list[CatalogueRow]:
    """The data sets known by name."""
    rows = [CatalogueRow(_EMBEDDED, "", 10, 10_000, 2_000, "embedded")]
    for name, (hub_id, classes, train, test) in _KNOWN.items():
        found = _shared_folder(hub_id) or cache.find(cache.key_of(hub_id, None, _read_options(Columns())))
        rows.append(CatalogueRow(name, hub_id, classes, train, test, str(found) if found else "not here"))
    return rows


def _whole(name: str, columns: Columns, options: dict[str, Any]) -> Dataset:
    if ":" in name:
        return _from_function(name, options)
    if options:
        raise OptionError(f"dataset_options are for a function package.module:function; {name!r} is none")
    return _embedded() if name == _EMBEDDED else _from_source(name, columns)


def _embedded() -> Dataset:
    with (
        resources.files("fedsparq.tasks").joinpath("mnist_mini.npz").open("rb") as file,
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


def _from_source(name: str, columns: Columns) -> Dataset:
    hub_id, folder = find(name)
    key = cache.key_of(hub_id, folder, _read_options(columns))
    kept = cache.read(key)
    if kept is not None:
        return kept
    from fedsparq.tasks import source

    try:
        return cache.write(key, partial(source.read, hub_id, folder, columns))
    except (OSError, ValueError) as error:
        raise DataError(
            f"cannot decode data set {name!r} into the cache: {error} (FEDSPARQ_CACHE names another place for it)"
        ) from error


def find(name: str) -> tuple[str, Path | None]:
    """What to call a set, and the folder or file that holds it; none if it must come from the hub."""
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
    raise OptionError(f"unknown data set {name!r}: choose from {known}, or give {forms}")


def _shared_folder(hub_id: str) -> Path | None:
    root = os.environ.get("FEDSPARQ_DATASETS")
    folder = Path(root, hub_id).resolve() if root and ".." not in hub_id and not hub_id.startswith("/") else None
    return folder if folder is not None and folder.is_dir() else None


def _read_options(columns: Columns) -> list[Any]:
    return [columns.label, columns.client, columns.window]


def _limited(split: Split, limit: int | None, option: str) -> tuple[Split, Any]:
    if limit is None:
        return split, None
    x, y = split
    if not 1 <= limit <= len(y):
        raise OptionError(f"{option} must be from 1 to {len(y)}, the size of the split; got {limit}")
    chosen = stratified_order(strata(y), np.random.default_rng(_LIMIT_SEED))[:limit]
    return (x[chosen], y[chosen]), chosen
