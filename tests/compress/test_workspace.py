"""The update plus the residual, layer by layer."""

from functools import partial

import numpy as np
import pytest

from fedsparq import Layout, encode
from fedsparq.compress.workspace import Workspace
from fedsparq.errors import UpdateError
from fedsparq.methods import METHODS
from fedsparq.methods.registry import method

LAYOUT = Layout.of({"a": (3,), "none": (0,), "b": (2,)})
UPDATE = np.array([1, -2, 3, -4, 5], np.float32)
RESIDUAL = np.array([0.5, 0.5, 0.5, 10, 0], np.float32)


def test_layers_are_made_group_by_group(monkeypatch):
    monkeypatch.setattr("fedsparq.layout._GROUP", 3)
    layout = Layout.of({"a": (3,), "none": (0,), "b": (2,)})
    assert layout.groups == ((0, 1), (1, 3))
    memory = np.full(5, np.nan, np.float32)
    workspace = Workspace(layout, UPDATE, RESIDUAL, memory)
    groups = workspace.groups()
    layers, vector, sums = next(groups)
    assert (layers, sums.tolist()) == (slice(0, 1), [1.5 + 1.5 + 3.5])
    assert vector is memory
    assert np.isnan(memory[3:]).all()
    vector[:3] = 0
    layers, _, sums = next(groups)
    assert (layers, sums.tolist()) == (slice(1, 3), [0, 11])
    assert workspace.vector.tolist() == [0, 0, 0, 6, 5]
    assert workspace.sums.tolist() == [6.5, 0, 11], "as they were before anything was taken away"
    assert workspace.update.tolist() == UPDATE.tolist()


def test_no_layers_no_groups():
    assert list(Workspace(Layout.of({}), np.empty(0, np.float32)).groups()) == []


def test_without_a_residual_it_is_a_copy():
    workspace = Workspace(LAYOUT, UPDATE)
    workspace.vector[:] = 0
    assert UPDATE.tolist() == [1, -2, 3, -4, 5]


@pytest.mark.parametrize("recycle", [RESIDUAL, np.zeros(4, np.float32), np.broadcast_to(np.float32(0), (5,))])
def test_memory_that_is_in_use_or_does_not_fit_is_left_alone(recycle):
    before = recycle.copy()
    assert Workspace(LAYOUT, UPDATE, RESIDUAL, recycle).vector.tolist() == (UPDATE + RESIDUAL).tolist()
    assert recycle.tolist() == before.tolist()


def test_a_sum_that_is_not_finite_names_layer_and_index():
    residual = RESIDUAL.copy()
    residual[4] = np.inf
    with pytest.raises(UpdateError, match=r"'b'.* inf at index 1 of 2"):
        _ = Workspace(LAYOUT, UPDATE, residual).vector


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
