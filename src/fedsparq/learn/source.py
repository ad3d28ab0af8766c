"""Reads a data set of any shape the `datasets` library knows, as streams of equal uint8 images."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import DataError, MissingExtraError

try:
    import datasets
    from huggingface_hub import HfApi, is_offline_mode
    from PIL import Image
except ImportError as error:
    raise MissingExtraError("reading data sets needs flwr-datasets: pip install 'fedsparq[torch]'") from error

_TEST_SPLITS = ("test", "validation", "valid")
_BATCH = 1000


@dataclass(frozen=True)
class Table:
    """One split before decoding: the encoded images, and the labels."""

    rows: Any
    image_column: str
    labels: NDArray[np.int64]
    mode: str
    shape: tuple[int, int, int]

    def images(self) -> Iterator[NDArray[np.uint8]]:
        """Each image as uint8[C, H, W]."""
        channels, height, width = self.shape
        for picture in _pictures(self.rows, self.image_column):
            if picture.size != (width, height):
                raise DataError(
                    f"the images differ in size ({width}x{height}, {picture.size[0]}x{picture.size[1]}); "
                    "only sets with one image size can be used"
                )
            pixels = np.asarray(picture if picture.mode == self.mode else picture.convert(self.mode))
            yield pixels.reshape(height, width, channels).transpose(2, 0, 1)


@dataclass(frozen=True)
class Splits:
    """A train and a test split with the same classes."""

    train: Table
    test: Table
    classes: tuple[str, ...]


@contextmanager
def open_splits(hub_id: str, folder: Path | None) -> Iterator[Splits]:
    """The splits of a local folder in the hub's layout, or else of the hub itself."""
    with tempfile.TemporaryDirectory(prefix="fedsparq-") as scratch:
        found = _load_from_hub(hub_id) if folder is None else _load_from_folder(folder, scratch)
        yield _choose(hub_id if folder is None else str(folder), found)


def _load_from_folder(folder: Path, scratch: str) -> Any:
    shown = not datasets.utils.are_progress_bars_disabled()
    datasets.utils.disable_progress_bars()
    try:
        return datasets.load_dataset(str(folder), cache_dir=scratch)
    except Exception as error:  # the library raises many kinds, down to plain Exception
        raise DataError(f"cannot read a data set from {folder}: {_first_line(error)}") from error
    finally:
        if shown:
            datasets.utils.enable_progress_bars()


def _load_from_hub(hub_id: str) -> Any:
    try:
        if not is_offline_mode():  # one quick question, where load_dataset would ask again for 20 seconds
            HfApi().dataset_info(hub_id, timeout=10)
        return datasets.load_dataset(hub_id)
    except Exception as error:  # as above, and every kind of network failure
        raise DataError(
            f"data set {hub_id!r} is not in $FEDSPARQ_DATASETS, and the hub did not give it ({_first_line(error)}). "
            f"Fetch it where there is a network: hf download --repo-type dataset {hub_id} --local-dir DIR/{hub_id}, "
            "then set FEDSPARQ_DATASETS=DIR"
        ) from error


def _choose(where: str, found: Any) -> Splits:
    test_split = next((name for name in _TEST_SPLITS if name in found), None)
    if "train" not in found or test_split is None:
        raise DataError(f"{where} has the splits {', '.join(found)}; needed are 'train' and 'test' (or 'validation')")
    features = found["train"].features
    image_column = _column(where, features, datasets.Image)
    label_column = _column(where, features, datasets.ClassLabel)
    classes = tuple(features[label_column].names)
    tables = {
        name: found[name].cast_column(image_column, datasets.Image(decode=False)) for name in ("train", test_split)
    }
    mode, size = _format(tables["train"], image_column, where)
    shape = (1 if mode == "L" else 3, size[1], size[0])

    def table(name: str) -> Table:
        labels = _labels(tables[name], label_column, len(classes), f"split {name!r} of {where}")
        return Table(tables[name], image_column, labels, mode, shape)

    return Splits(table("train"), table(test_split), classes)


def _column(where: str, features: Any, kind: type) -> str:
    """The first column of a kind: sets with coarse and fine labels name the main one first."""
    for name, feature in features.items():
        if isinstance(feature, kind):
            return str(name)
    kinds = ", ".join(f"{name}: {type(feature).__name__}" for name, feature in features.items())
    raise DataError(f"{where} has no {kind.__name__} column (it has {kinds}); it is no image-classification set")


def _format(rows: Any, image_column: str, where: str) -> tuple[str, tuple[int, int]]:
    """Grey if every train image is grey, else RGB; and the size of the first image."""
    mode, size = "L", None
    for picture in _pictures(rows, image_column):
        size = size or picture.size
        if picture.mode not in ("L", "1"):
            mode = "RGB"
            break
    if size is None:
        raise DataError(f"the train split of {where} is empty")
    return mode, size


def _labels(rows: Any, label_column: str, classes: int, where: str) -> NDArray[np.int64]:
    values = list(rows[label_column])
    if not values:
        raise DataError(f"{where} is empty")
    if any(value is None or not 0 <= value < classes for value in values):
        raise DataError(f"{where} has examples without a label; every example needs one")
    return np.array(values, dtype=np.int64)


def _pictures(rows: Any, image_column: str) -> Iterator[Image.Image]:
    for batch in rows.select_columns(image_column).iter(batch_size=_BATCH):
        for encoded in batch[image_column]:
            if encoded is None:
                raise DataError("the set has a row without an image")
            data = encoded["bytes"]
            yield Image.open(io.BytesIO(data) if data is not None else encoded["path"])


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
