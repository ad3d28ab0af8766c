"""A data set as arrays: inputs of any shape; classes, numbers or characters to predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import DataError

IGNORED = -100
"""The target of a position that does not count, such as what fills the last window of a text."""

_IMAGE_AXES = (3, 4)

Split = tuple[NDArray[Any], NDArray[Any]]
"""Examples ``x[n, ...]`` and their targets ``y[n]`` or ``y[n, ...]``."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples to train on and to test on, each ``(x, y)``: two arrays with as many rows.

    ``x`` is given to the model as it is: floats as float32, integers as int64. Pixels (uint8 with a height and a
    width, channels before them) are scaled, and normalised by the ``mean`` and ``std`` of the train split.
    ``y`` makes the task: integers from 0 are classes, floats are regression targets. Where each example has a row of
    integers, the model predicts a class at each of these positions, as for the next character of a text.

    ``owners`` says for each train example whose it is, for the partition ``natural``; ``classes`` names the classes.

    >>> import numpy as np
    >>> set = Dataset(train=(np.ones((8, 3)), np.arange(8) % 2), test=(np.ones((2, 3)), np.array([0, 1])))
    >>> set.inputs, set.outputs, set.classes
    ((3,), 2, ('0', '1'))
    """

    train: Split
    test: Split
    classes: Sequence[str] = ()
    mean: tuple[float, ...] = ()
    """Per channel, on the scale 0 to 1."""
    std: tuple[float, ...] = ()
    owners: NDArray[Any] | None = None
    text: bool = False
    """Whether the classes are characters."""
    target_std: tuple[float, ...] = ()
    """What regression targets were divided by, for a loss in their own units."""
    remark: str = ""
    """What a user should know, such as where the test split comes from."""
    name: str = ""

    def __post_init__(self) -> None:
        splits = {role: _checked_split(role, getattr(self, role)) for role in ("train", "test")}
        train, test = splits["train"], splits["test"]
        for what, ours, theirs in zip("xy", train, test, strict=True):
            if ours.shape[1:] != theirs.shape[1:] or ours.dtype != theirs.dtype:
                raise DataError(
                    f"{what} is {_describe(ours)} in train and {_describe(theirs)} in test; one example must look alike"
                )
        self._set("train", train)
        self._set("test", test)
        if self.classification:
            highest = max(int(y.max()) for _, y in splits.values())
            self._set("classes", self.classes or [str(number) for number in range(highest + 1)])
            if highest >= len(self.classes):
                raise DataError(f"y has the class {highest}, but classes names only {len(self.classes)}")
        if self.owners is not None:
            self._set("owners", np.unique(np.asarray(self.owners), return_inverse=True)[1].astype(np.int64))
            if self.owners.shape != (len(train[0]),):
                raise DataError(f"owners must name one for each of the {len(train[0])} train examples")
        if self.pixels and not self.mean:
            mean, std = pixel_statistics(train[0])
            self._set("mean", mean)
            self._set("std", std)
        for name in ("classes", "mean", "std", "target_std"):
            self._set(name, tuple(getattr(self, name)))

    @property
    def classification(self) -> bool:
        return bool(self.train[1].dtype.kind == "i")

    @property
    def pixels(self) -> bool:
        return is_image(self.train[0])

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.train[0].shape[1:])

    @property
    def outputs(self) -> int:
        """How many classes there are, or how many numbers the target of an example has."""
        return len(self.classes) if self.classification else int(self.train[1].shape[1])

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of an example at which a class is predicted; ``()`` where each example has one target."""
        return tuple(self.train[1].shape[1:]) if self.classification else ()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def is_image(x: NDArray[Any]) -> bool:
    """Whether these are pixels: bytes with at least a height and a width."""
    return x.dtype == np.uint8 and x.ndim in _IMAGE_AXES


def strata(y: NDArray[Any]) -> NDArray[np.int64]:
    """What a shuffle should spread evenly: the classes, where each example has one."""
    return y if y.ndim == 1 and y.dtype.kind == "i" else np.zeros(len(y), np.int64)


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


def _checked_split(role: str, split: Any) -> Split:
    if not isinstance(split, tuple) or len(split) != 2:
        raise DataError(f"{role} must be a pair of arrays (x, y), got {type(split).__name__}")
    x, y = (np.asarray(part) for part in split)
    if x.ndim < 2:
        raise DataError(f"x of {role} is {_describe(x)}; it needs a row for each example, such as (examples, columns)")
    if y.ndim < 1 or len(x) != len(y):
        raise DataError(f"{role} has {len(x)} examples x, but y is {_describe(y)}; y needs one row for each")
    if len(x) == 0 or x.size == 0:
        raise DataError(f"{role} is empty")
    return _inputs(role, x), _targets(role, y)


def _inputs(role: str, x: NDArray[Any]) -> NDArray[Any]:
    if is_image(x):
        return x if x.ndim == 4 else x[:, None]
    if x.dtype.kind in "biu":
        return x.astype(np.int64, copy=False)
    return _finite(f"x of {role}", x)


def _targets(role: str, y: NDArray[Any]) -> NDArray[Any]:
    if y.dtype.kind in "biu":
        least = int(y.min())
        if least < 0 and not (y.ndim > 1 and np.all((y >= 0) | (y == IGNORED))):
            raise DataError(f"y of {role} has the class {least}; classes are whole numbers from 0, or make y floats")
        return y.astype(np.int64, copy=False)
    return _finite(f"y of {role}", y).reshape(len(y), -1)


def _finite(what: str, values: NDArray[Any]) -> NDArray[np.float32]:
    if values.dtype.kind != "f":
        raise DataError(f"{what} is {_describe(values)}; it must be an array of floats or integers")
    values = values.astype(np.float32, copy=False)
    wrong = values.size - int(np.isfinite(values).sum())
    if wrong:
        raise DataError(f"{what} has {wrong} values that are not finite; fill them in or leave their examples out")
    return values


def _describe(array: NDArray[Any]) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"
