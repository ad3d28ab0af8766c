"""The columns of a table: which holds the label, which the client, and labels as classes or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import DataError

LABELS = ("label", "labels", "target", "y")
CLIENTS = ("client", "client_id", "user", "user_id", "speaker", "writer", "writer_id")
_MANY = 100


@dataclass(frozen=True)
class Columns:
    """What a user says of the columns; what is not said is found by the usual names."""

    label: str = ""
    client: str = ""
    window: int = 80
    """How many characters of a text are one example."""

    def find_client(self, where: str, names: Sequence[str]) -> str | None:
        return find(where, names, self.client, CLIENTS, "client_column")

    def find_label(self, where: str, names: Sequence[str]) -> str | None:
        return find(where, names, self.label, LABELS, "label_column")


def find(where: str, names: Sequence[str], said: str, usual: Sequence[str], option: str) -> str | None:
    """The column that was said, or else the first with a usual name, in capitals or not."""
    if said:
        if said not in names:
            raise DataError(f"{where} has no column {said!r}, which {option} names; it has {', '.join(names)}")
        return said
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in usual if name in lower), None)


@dataclass(frozen=True)
class Encoding:
    """How the values of a label column become targets: by their index among the classes, or as numbers."""

    column: str
    classes: tuple[Any, ...]
    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def of(cls, where: str, column: str, train: NDArray[Any], test: NDArray[Any] | None) -> Encoding:
        if train.dtype.kind == "f":
            return cls(column, (), float(train.mean()), float(train.std()) or 1.0)
        values = train if test is None else np.concatenate([train, test])
        classes = np.unique(values)
        if values.dtype.kind in "iu" and len(classes) > max(_MANY, len(values) // 2):
            raise DataError(
                f"the label column {column!r} of {where} has {len(classes)} different integers in {len(values)} rows, "
                "too many for classes; for regression write them as floats, such as 3.0"
            )
        return cls(column, tuple(classes.tolist()))

    def encode(self, values: NDArray[Any]) -> NDArray[Any]:
        if self.classes:
            return np.searchsorted(np.array(self.classes, values.dtype), values).astype(np.int64)
        return ((values - self.mean) / self.std).astype(np.float32)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(value) for value in self.classes)


def label_values(where: str, column: str, values: Any) -> NDArray[Any]:
    """A label column (a pandas Series) as integers, floats or text; every example needs a label."""
    missing = int(values.isna().sum())
    if missing or not len(values):
        raise DataError(
            f"{where} has {missing} examples without a label in column {column!r}; every example needs one"
            if len(values)
            else f"{where} is empty"
        )
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
