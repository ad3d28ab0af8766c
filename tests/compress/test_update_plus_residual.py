"""The update plus the residual; memory that is written before it is read."""

from functools import partial

import numpy as np
import pytest

from fedsparq import Layout, encode
from fedsparq.compress.feedback import sum_of
from fedsparq.errors import UpdateError
from fedsparq.methods import METHODS
from fedsparq.methods.registry import method

LAYOUT = Layout.of({"a": (3,), "none": (0,), "b": (2,)})
UPDATE = np.array([1, -2, 3, -4, 5], np.float32)
RESIDUAL = np.array([0.5, 0.5, 0.5, 10, 0], np.float32)


def test_the_sum_is_new_memory():
    c, sums = sum_of(UPDATE, RESIDUAL, LAYOUT)
    assert c.tolist() == [1.5, -1.5, 3.5, 6, 5]
    assert sums.tolist() == [6.5, 0, 11]
    c, _ = sum_of(UPDATE, None, LAYOUT)
    c[:] = 0
    assert UPDATE.tolist() == [1, -2, 3, -4, 5]
    assert sum_of(np.empty(0, np.float32), None, Layout.of({}))[1].size == 0


def test_a_sum_that_is_not_finite_names_layer_and_index():
    residual = RESIDUAL.copy()
    residual[4] = np.inf
    with pytest.raises(UpdateError, match=r"'b'.* inf .* 1 of 2"):
        sum_of(UPDATE, residual, LAYOUT)


@pytest.mark.parametrize("name", METHODS)
def test_no_method_reads_memory_before_it_is_written(name, monkeypatch):
    layout = Layout.of({"w": (40, 60), "b": (60,), "none": (0,), "v": (60, 10)})
    updates = np.random.default_rng(0).laplace(size=(2, layout.size)).astype(np.float32)
    empty, found = np.empty, []

    def filled(byte, *given, **named):
        made = empty(*given, **named)
        made.reshape(-1, order="A").view(np.uint8).fill(byte)
        return made

    for new in (empty, partial(filled, 0), partial(filled, 255)):  # 255: no numbers, or negative
        with monkeypatch.context() as patch:
            patch.setattr(np, "empty", new)
            chosen = method(name)
            state = chosen.init(layout)
            for number, update in enumerate(updates, 1):
                state = chosen.begin(state, number)
                payload, state = chosen.compress(update, state, np.random.default_rng(number))
                found.append((encode(payload), {key: array.tobytes() for key, array in state.arrays().items()}))
    assert found[:2] == found[2:4] == found[4:]
