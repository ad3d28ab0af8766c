"""Decode rows with named columns into arrays: images with labels, numbers with labels, or text.

Large sets of images are decoded into files, one image after another, so that they never have to fit into memory.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedsparq.errors import DataError
from fedsparq.lab.tasks.dataset import IGNORED, Dataset, Split, strata
from fedsparq.lab.tasks.partition import stratified_order

if TYPE_CHECKING:
    from fedsparq.lab.tasks.load import Columns

_LABELS = ("label", "labels", "target", "y")
_CLIENTS = ("client", "client_id", "user", "user_id", "speaker", "writer", "writer_id")
_TEXT = "text"
_MAX_CLASSES = 100
"""More different integers than this are classes only if each stands for two rows or more."""
_TEST_SPLITS = ("test", "validation", "valid")
_TEST_PARTS = 5
"""Without a test split, one of this many parts is kept for testing."""
_SPLIT_SEED = 20_251_105
_IMAGES_PER_BATCH = 1000


def decode(where: str, found: Mapping[str, Any], columns: Columns, scratch: Path) -> Dataset:
    """Decode a set as its columns suggest: images, characters or numbers."""
    if "train" not in found:
        raise DataError(f"{where} has the splits {', '.join(found)}; needed is 'train', and best also 'test'")
    test = next((name for name in _TEST_SPLITS if name in found), None)
    splits = {"train": found["train"]} | ({"test": found[test]} if test else {})
    features = found["train"].features
    client = _find_column(where, list(features), columns.client, _CLIENTS, "client_column")
    # sets with coarse and fine labels name the main one first
    named = (name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel) and not columns.label)
    label = next(named, None) or _find_column(where, list(features), columns.label, _LABELS, "label_column")
    image = next((name for name, kind in features.items() if isinstance(kind, datasets.Image)), None)
    if label is None and image is None and _is_text(features.get(_TEXT)):
        texts = {role: _texts_by_owner(rows, client) for role, rows in splits.items()}
        return characters(texts["train"], texts.get("test"), columns.window, owned=client is not None)
    if label is None:
        raise DataError(
            f"{where} has no label column: none of its columns ({', '.join(features)}) is called "
            f"{', '.join(_LABELS[:-1])} or {_LABELS[-1]}; name it with label_column"
        )
    labels = {role: _label_values(f"split {role!r} of {where}", label, rows) for role, rows in splits.items()}
    targets, classes, deviation = _encode_labels(where, label, features[label], labels)
    if not test:
        splits, targets = _set_aside(where, splits["train"], targets["train"])
    if image:
        encoded = datasets.Image(decode=False)
        x = _images({role: rows.cast_column(image, encoded) for role, rows in splits.items()}, image, scratch)
    else:
        x = _numbers(where, splits, [name for name in features if name not in (label, client)])
    return Dataset(
        (x["train"], targets["train"]),
        (x["test"], targets["test"]),
        classes=classes,
        owners=_series(splits["train"], client).astype(str).to_numpy(np.str_) if client else None,
        target_std=deviation,
        remark=""
        if test
        else "there is no test split: a fifth of the examples, the same each time, is kept for testing",
    )


def characters(train: Mapping[str, str], test: Mapping[str, str] | None, window: int, owned: bool) -> Dataset:
    """Return the task to predict each next character of a text, given by owner, from those before it in its window."""
    remark = ""
    if test is None:
        cuts = {owner: len(text) - len(text) // _TEST_PARTS for owner, text in train.items()}
        test = {owner: text[cuts[owner] :] for owner, text in train.items()}
        train = {owner: text[: cuts[owner]] for owner, text in train.items()}
        remark = "there is no test split: the last fifth of each text is kept for testing"
    known = sorted(set().union(*train.values(), *test.values()))
    codes = {character: code for code, character in enumerate(known)}
    windows = {owner: _windows(text, codes, window) for owner, text in train.items()}
    owners = np.repeat(np.arange(len(windows)), [len(x) for x, _ in windows.values()])
    return Dataset(
        _joined("train", list(windows.values())),
        _joined("test", [_windows(text, codes, window) for text in test.values()]),
        classes=known,
        owners=owners if owned else None,
        text=True,
        remark=remark,
    )


def _find_column(
    where: str, names: Sequence[str], requested: str, default_names: Sequence[str], option: str
) -> str | None:
    """Return the requested column, or else the first with a usual name, in capitals or not."""
    if requested:
        if requested not in names:
            raise DataError(f"{where} has no column {requested!r}, which {option} names; it has {', '.join(names)}")
        return requested
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in default_names if name in lower), None)


def _label_values(where: str, column: str, rows: Any) -> NDArray[Any]:
    """Return a label column as integers, floats or text; every example needs a label."""
    values = _series(rows, column)
    if not len(values):
        raise DataError(f"{where} is empty")
    if missing := int(values.isna().sum()):
        raise DataError(f"{where} has {missing} examples without a label in column {column!r}; every example needs one")
    array = np.asarray(values.to_numpy())
    if array.dtype.kind in "iuf":
        return array
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if all(isinstance(value, str) for value in array):
        return array.astype(np.str_)
    raise DataError(
        f"the label column {column!r} of {where} holds {type(array.flat[0]).__name__}s; give numbers or words"
    )


def _encode_labels(
    where: str, column: str, kind: Any, labels: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...], tuple[float, ...]]:
    """Return the targets of each split, and either the names of the classes or the deviation of the numbers."""
    train, everything = labels["train"], np.concatenate(list(labels.values()))
    if isinstance(kind, datasets.ClassLabel):
        wrong = int(((everything < 0) | (everything >= kind.num_classes)).sum())
        if wrong:
            raise DataError(
                f"{where} has {wrong} examples without a label in column {column!r}; every example needs one"
            )
        return {role: values.astype(np.int64) for role, values in labels.items()}, tuple(kind.names), ()
    if train.dtype.kind == "f":
        mean, std = float(train.mean()), float(train.std()) or 1.0
        return {role: ((values - mean) / std).astype(np.float32) for role, values in labels.items()}, (), (std,)
    classes = np.unique(everything)
    if everything.dtype.kind in "iu" and len(classes) > max(_MAX_CLASSES, len(everything) // 2):
        raise DataError(
            f"the label column {column!r} of {where} has {len(classes)} different integers in {len(everything)} rows, "
            "too many for classes; for regression write them as floats, such as 3.0"
        )
    codes = {role: np.searchsorted(classes, values).astype(np.int64) for role, values in labels.items()}
    return codes, tuple(map(str, classes.tolist())), ()


def _set_aside(where: str, rows: Any, targets: NDArray[Any]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Take a fixed fifth of the rows as the test split, each class by its share."""
    held = len(rows) // _TEST_PARTS
    if not held:
        raise DataError(f"{where} has no test split, and {len(rows)} examples are too few to set some aside")
    order = stratified_order(strata(targets), np.random.default_rng(_SPLIT_SEED))
    chosen = {"train": np.sort(order[held:]), "test": np.sort(order[:held])}
    return {role: rows.select(part) for role, part in chosen.items()}, {r: targets[part] for r, part in chosen.items()}


def _images(splits: dict[str, Any], column: str, scratch: Path) -> dict[str, NDArray[Any]]:
    """Decode the images of each split to uint8[N, C, H, W], in files ``<split>_x.npy``: gray if all in train are, else
    RGB."""
    width, height = next(_pictures(splits["train"], column)).size
    gray = all(picture.mode in ("L", "1") for picture in _pictures(splits["train"], column))
    mode, channels = ("L", 1) if gray else ("RGB", 3)
    decoded = {}
    for role, rows in splits.items():
        images = np.lib.format.open_memmap(
            scratch / f"{role}_x.npy", "w+", np.uint8, (len(rows), channels, height, width)
        )
        for index, picture in enumerate(_pictures(rows, column)):
            if picture.size != (width, height):
                raise DataError(
                    f"the images differ in size ({width}x{height}, {picture.size[0]}x{picture.size[1]}); "
                    "only sets with one image size can be used"
                )
            pixels = np.asarray(picture if picture.mode == mode else picture.convert(mode))
            images[index] = pixels.reshape(height, width, channels).transpose(2, 0, 1)
        images.flush()
        decoded[role] = np.asarray(images)
    return decoded


def _pictures(rows: Any, column: str) -> Iterator[Image.Image]:
    for batch in rows.select_columns(column).iter(batch_size=_IMAGES_PER_BATCH):
        for encoded in batch[column]:
            if encoded is None:
                raise DataError("the set has a row without an image")
            data = encoded["bytes"]
            yield Image.open(io.BytesIO(data) if data is not None else encoded["path"])


def _numbers(where: str, splits: Mapping[str, Any], names: list[str]) -> dict[str, NDArray[Any]]:
    """Return the columns of numbers as float32[rows, columns], standardized by those of the train split."""
    if not names:
        raise DataError(f"{where} has no columns besides its label; there is nothing to learn from")
    tables = {role: np.concatenate([_column(where, rows, name) for name in names], 1) for role, rows in splits.items()}
    mean, std = tables["train"].mean(0), tables["train"].std(0)
    return {role: ((table - mean) / np.where(std > 0, std, 1)).astype(np.float32) for role, table in tables.items()}


def _column(where: str, rows: Any, name: str) -> NDArray[np.float64]:
    """Return a column as float64[rows, 1], or wider where each row has a list of numbers."""
    series = _series(rows, name)
    missing = int(series.isna().sum())
    if missing:
        raise DataError(
            f"column {name!r} of {where} has {missing} rows without a value; fill them in or leave them out"
        )
    try:
        values = np.array(series.to_list(), np.float64)
    except (TypeError, ValueError):
        example = str(series.iloc[0])[:30]
        raise DataError(
            f"column {name!r} of {where} does not hold numbers (such as {example!r}); encode or remove it"
        ) from None
    return values.reshape(len(values), -1)


def _series(rows: Any, column: str) -> Any:
    return rows.select_columns(column).with_format(None).to_pandas()[column]


def _is_text(kind: Any) -> bool:
    return isinstance(kind, datasets.Value) and kind.dtype in ("string", "large_string")


def _texts_by_owner(rows: Any, client: str | None) -> dict[str, str]:
    """Join all texts of each owner, in their order."""
    owners = list(map(str, rows[client])) if client else [""] * len(rows)
    texts: dict[str, list[str]] = {}
    for owner, text in zip(owners, rows[_TEXT], strict=True):
        texts.setdefault(owner, []).append(text)
    return {owner: "".join(parts) for owner, parts in texts.items()}


def _windows(text: str, codes: Mapping[str, int], window: int) -> Split:
    """Return each window's characters and the character after each; what is past the end of the text is ignored."""
    encoded = np.array([codes[character] for character in text], np.int64)
    count = -(-max(0, len(encoded) - 1) // window)
    x, y = np.zeros(count * window, np.int64), np.full(count * window, IGNORED, np.int64)
    if count:
        x[: len(encoded) - 1], y[: len(encoded) - 1] = encoded[:-1], encoded[1:]
    return x.reshape(count, window), y.reshape(count, window)


def _joined(role: str, splits: Sequence[Split]) -> Split:
    if not any(len(x) for x, _ in splits):
        raise DataError(f"the text of the {role} split is too short: no character has one before it")
    x, y = (np.concatenate([split[part] for split in splits]) for part in (0, 1))
    return x, y
