"""Rows with named columns as arrays: images with labels, numbers with labels, or text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import DataError
from fedsparq.tasks import pictures, text
from fedsparq.tasks.columns import LABELS, Columns, Encoding, label_values
from fedsparq.tasks.dataset import Dataset, strata
from fedsparq.tasks.partition import stratified_order

_TEST_SPLITS = ("test", "validation", "valid")
_TEXT = "text"
_TEST_SHARE = 5
_SPLIT_SEED = 20_251_105
_NO_TEST = "there is no test split: a fifth of the examples, the same each time, is kept for testing"


def decode(where: str, found: Mapping[str, Any], columns: Columns, scratch: Path) -> Dataset:
    """A set of rows for what its columns are: images, characters or numbers."""
    if "train" not in found:
        raise DataError(f"{where} has the splits {', '.join(found)}; needed is 'train', and best also 'test'")
    test = next((name for name in _TEST_SPLITS if name in found), None)
    splits = {"train": found["train"]} | ({"test": found[test]} if test else {})
    features = found["train"].features
    client, label = columns.find_client(where, list(features)), _label_column(where, features, columns)
    image = next((name for name, kind in features.items() if isinstance(kind, datasets.Image)), None)
    if label is None and image is None and _is_text(features.get(_TEXT)):
        return _text(splits, client, columns.window)
    if label is None:
        raise DataError(
            f"{where} has no label column: none of its columns ({', '.join(features)}) is called "
            f"{', '.join(LABELS[:-1])} or {LABELS[-1]}; name it with label_column"
        )
    labels = {
        role: label_values(f"split {role!r} of {where}", label, _series(rows, label)) for role, rows in splits.items()
    }
    kind = features[label]
    if isinstance(kind, datasets.ClassLabel):
        encoding = _by_number(where, label, kind, labels)
    else:
        encoding = Encoding.of(where, label, labels["train"], labels.get("test"))
    targets = {role: encoding.encode(values) for role, values in labels.items()}
    if not test:
        splits, targets = _set_aside(where, splits["train"], targets["train"])
    if image:
        encoded = datasets.Image(decode=False)
        x: dict[str, NDArray[Any]] = dict(
            pictures.decode({role: rows.cast_column(image, encoded) for role, rows in splits.items()}, image, scratch)
        )
    else:
        x = _numbers(where, splits, [name for name in features if name not in (label, client)])
    owners = _series(splits["train"], client).astype(str).to_numpy(np.str_) if client else None
    return Dataset(
        (x["train"], targets["train"]),
        (x["test"], targets["test"]),
        classes=tuple(kind.names) if isinstance(kind, datasets.ClassLabel) else encoding.names,
        owners=owners,
        target_std=() if encoding.classes else (encoding.std,),
        remark="" if test else _NO_TEST,
    )


def _label_column(where: str, features: Any, columns: Columns) -> str | None:
    """The column that was said, or the first with named classes (sets with coarse and fine labels name the main one
    first), or one with a usual name."""
    named = (name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel))
    return (None if columns.label else next(named, None)) or columns.find_label(where, list(features))


def _by_number(where: str, column: str, kind: Any, labels: Mapping[str, NDArray[Any]]) -> Encoding:
    """Labels with named classes are their numbers already; -1 stands for none."""
    wrong = sum(int(((values < 0) | (values >= kind.num_classes)).sum()) for values in labels.values())
    if wrong:
        raise DataError(f"{where} has {wrong} examples without a label in column {column!r}; every example needs one")
    return Encoding(column, tuple(range(kind.num_classes)))


def _set_aside(where: str, rows: Any, targets: NDArray[Any]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """A fixed fifth of the rows as the test split, each class by its share."""
    held = len(rows) // _TEST_SHARE
    if not held:
        raise DataError(f"{where} has no test split, and {len(rows)} examples are too few to set some aside")
    order = stratified_order(strata(targets), np.random.default_rng(_SPLIT_SEED))
    chosen = {"train": np.sort(order[held:]), "test": np.sort(order[:held])}
    return {role: rows.select(part) for role, part in chosen.items()}, {r: targets[part] for r, part in chosen.items()}


def _numbers(where: str, splits: Mapping[str, Any], names: list[str]) -> dict[str, NDArray[Any]]:
    """The columns of numbers as float32[rows, columns], each less its mean in train and over its deviation there."""
    if not names:
        raise DataError(f"{where} has no columns beside its label; there is nothing to learn from")
    tables = {role: np.concatenate([_column(where, rows, name) for name in names], 1) for role, rows in splits.items()}
    mean, std = tables["train"].mean(0), tables["train"].std(0)
    return {role: ((table - mean) / np.where(std > 0, std, 1)).astype(np.float32) for role, table in tables.items()}


def _column(where: str, rows: Any, name: str) -> NDArray[np.float64]:
    """A column as float64[rows, 1], or wider where each row has a list of numbers."""
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


def _text(splits: Mapping[str, Any], client: str | None, window: int) -> Dataset:
    texts = {
        role: text.texts_by_owner(list(rows[_TEXT]), list(map(str, rows[client])) if client else None)
        for role, rows in splits.items()
    }
    return text.characters(texts["train"], texts.get("test"), window, owned=client is not None)


def _is_text(kind: Any) -> bool:
    return isinstance(kind, datasets.Value) and kind.dtype in ("string", "large_string")


def _series(rows: Any, column: str) -> Any:
    return rows.select_columns(column).with_format(None).to_pandas()[column]
