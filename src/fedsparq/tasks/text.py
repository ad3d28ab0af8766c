"""Text as characters: each owner's text in a row, cut into windows that do not overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import DataError
from fedsparq.tasks.dataset import IGNORED, Dataset, Split

_TEST_SHARE = 5
"""Without a test split, one part in so many of each text is kept for it: the last."""

Texts = Mapping[str, str]
"""Whose text it is, and the text."""


def characters(train: Texts, test: Texts | None, window: int, owned: bool) -> Dataset:
    """To predict each next character of a text, from those before it in its window."""
    remark = ""
    if test is None:
        cuts = {owner: len(text) - len(text) // _TEST_SHARE for owner, text in train.items()}
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


def texts_by_owner(texts: Sequence[str], owners: Sequence[str] | None) -> dict[str, str]:
    """All that each says, in the order in which it is said."""
    said: dict[str, list[str]] = {}
    for owner, text in zip(owners if owners is not None else [""] * len(texts), texts, strict=True):
        said.setdefault(owner, []).append(text)
    return {owner: "".join(parts) for owner, parts in said.items()}


def _windows(text: str, codes: Mapping[str, int], window: int) -> Split:
    """Each window's characters, and the one that follows each; behind the end of the text nothing counts."""
    whole = np.array([codes[character] for character in text], np.int64)
    count = -(-max(0, len(whole) - 1) // window)
    x, y = np.zeros(count * window, np.int64), np.full(count * window, IGNORED, np.int64)
    if count:
        x[: len(whole) - 1], y[: len(whole) - 1] = whole[:-1], whole[1:]
    return x.reshape(count, window), y.reshape(count, window)


def _joined(role: str, splits: Sequence[Split]) -> Split:
    x, y = (_stack([split[part] for split in splits]) for part in (0, 1))
    if not len(x):
        raise DataError(f"the text of the {role} split is too short: no character has one before it")
    return x, y


def _stack(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty((0, 1), np.int64)
