"""Data that hostile clients tamper with."""

import numpy as np
import pytest

from fedsparq.errors import OptionError
from fedsparq.lab.tasks.dataset import Dataset
from fedsparq.lab.tasks.supervised import TARGET, Supervised, backdoor_test, poisoned


def images() -> Dataset:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 200, (20, 1, 8, 8)).astype(np.uint8), np.arange(20) % 5
    return Dataset(train=(x, y), test=(x[:10], y[:10]))


def test_flipped_labels_are_counted_from_the_end() -> None:
    data = images()
    assert poisoned(data, "label-flip").train[1].tolist() == [4 - c for c in data.train[1]]
    assert data.train[1].tolist() == [n % 5 for n in range(20)], "the others' data stay as they are"


def test_backdoor_marks_every_other_image() -> None:
    data, bad = images(), poisoned(images(), "backdoor")
    assert (bad.train[1][1::2] == TARGET).all()
    assert np.array_equal(bad.train[0][::2], data.train[0][::2])
    assert (bad.train[0][1::2, :, -4:, -4:] == 255).all()
    assert np.array_equal(bad.train[0][:, :, :4], data.train[0][:, :, :4])
    assert bad.mean == data.mean, "the server knows nothing of it"


def test_success_is_measured_on_other_classes() -> None:
    marked = backdoor_test(images())
    assert len(marked.test[0]) == 8
    assert (marked.test[1] == TARGET).all()
    assert (marked.test[0][:, :, -4:, -4:] == 255).all()


def test_what_cannot_be_tampered_with_is_refused() -> None:
    numbers = Dataset(train=(np.ones((4, 3)), np.ones(4)), test=(np.ones((2, 3)), np.ones(2)))
    with pytest.raises(OptionError, match="classes, which this data set has not"):
        poisoned(numbers, "label-flip")
    table = Dataset(train=(np.ones((4, 3)), np.arange(4)), test=(np.ones((2, 3)), np.arange(2)))
    with pytest.raises(OptionError, match="on images"):
        poisoned(table, "backdoor")


def test_clean_set_is_small_even_and_always_the_same() -> None:
    task = Supervised(clients=4, train_limit=400, test_limit=50)
    first, again = (task.train_clean(task.initial(), 1, 30) for _ in range(2))
    assert first.examples == 30
    assert np.array_equal(first.update, again.update)
    assert not np.array_equal(first.update, task.train_clean(task.initial(), 2, 30).update)
