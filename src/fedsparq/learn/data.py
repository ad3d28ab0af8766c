"""Image-classification data sets by name: embedded, from a local folder, or from the Hugging Face hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import DataError, OptionError
from fedsparq.learn import cache
from fedsparq.learn.partition import stratified_order

_EMBEDDED = "mnist-mini"
_KNOWN = {
    "mnist": ("ylecun/mnist", 10, 60_000, 10_000),
    "fashion-mnist": ("zalando-datasets/fashion_mnist", 10, 60_000, 10_000),
    "cifar10": ("uoft-cs/cifar10", 10, 50_000, 10_000),
}
"""By name: hub id, number of classes, train images, test images."""

_LIMIT_SEED = 20_251_105
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Split:
    """Images as uint8[N, C, H, W] and their labels as int64[N]."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """A data set; mean and std are per channel, on the scale 0 to 1, of the whole train split."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class CatalogueRow:
    """A data set known by name, and where it would be read from: a folder, "embedded" or "not here" (the hub)."""

    name: str
    hub_id: str
    classes: int
    train: int
    test: int
    where: str


def load(name: str, *, train_limit: int | None = None, test_limit: int | None = None) -> Dataset:
    """A data set by name, or by the hub id (``owner/name``) of any set with one image size and class labels.

    It is looked for in ``$FEDSPARQ_DATASETS/<hub id>``, then on the hub, decoded once and kept in the cache, from
    where all processes share one copy of it. A limit takes the first n of a fixed stratified shuffle, so that a
    smaller set is the same each time, has the classes of the whole, and is part of every larger one.
    """
    decoded = _embedded() if name == _EMBEDDED else _from_source(name)
    return Dataset(
        name=name,
        train=_limited(Split(decoded.train_images, decoded.train_labels), train_limit, "train_limit"),
        test=_limited(Split(decoded.test_images, decoded.test_labels), test_limit, "test_limit"),
        classes=decoded.classes,
        mean=decoded.mean,
        std=decoded.std,
    )


def catalogue() -> list[CatalogueRow]:
    """The data sets known by name."""
    rows = [CatalogueRow(_EMBEDDED, "", 10, 10_000, 2_000, "embedded")]
    for name, (hub_id, classes, train, test) in _KNOWN.items():
        found = _local_folder(hub_id) or cache.find(cache.hub_key(hub_id))
        rows.append(CatalogueRow(name, hub_id, classes, train, test, str(found) if found else "not here"))
    return rows


def _embedded() -> cache.Decoded:
    with (
        resources.files("fedsparq.learn").joinpath("mnist_mini.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        images = {split: arrays[f"{split}_images"][:, None] for split in ("train", "test")}
        labels = {split: arrays[f"{split}_labels"].astype(np.int64) for split in ("train", "test")}
    mean, std = cache.pixel_statistics(images["train"])
    classes = tuple(str(digit) for digit in range(10))
    return cache.Decoded(images["train"], labels["train"], images["test"], labels["test"], classes, mean, std)


def _from_source(name: str) -> cache.Decoded:
    hub_id = _KNOWN[name][0] if name in _KNOWN else name
    if not _HUB_ID.fullmatch(hub_id):
        known = ", ".join((_EMBEDDED, *_KNOWN))
        raise OptionError(f"unknown data set {name!r}: choose from {known}, or give a hub id such as owner/name")
    folder = _local_folder(hub_id)
    key = cache.hub_key(hub_id) if folder is None else cache.folder_key(hub_id, folder)
    kept = cache.read(key)
    if kept is not None:
        return kept
    from fedsparq.learn import source

    try:
        return cache.write(key, source.open_splits(hub_id, folder))
    except (OSError, ValueError) as error:
        raise DataError(
            f"cannot decode data set {name!r} into the cache: {error} (FEDSPARQ_CACHE names another place for it)"
        ) from error


def _local_folder(hub_id: str) -> Path | None:
    root = os.environ.get("FEDSPARQ_DATASETS")
    folder = Path(root, hub_id).resolve() if root else None
    return folder if folder is not None and folder.is_dir() else None


def _limited(split: Split, limit: int | None, option: str) -> Split:
    if limit is None:
        return split
    if not 1 <= limit <= len(split.labels):
        raise OptionError(f"{option} must be from 1 to {len(split.labels)}, the size of the split; got {limit}")
    chosen = stratified_order(split.labels, np.random.default_rng(_LIMIT_SEED))[:limit]
    return Split(split.images[chosen], split.labels[chosen])
