"""The plain step and momentum, in closed form."""

import numpy as np
import pytest

from fedsparq.errors import OptionError
from fedsparq.layout import Layout
from fedsparq.optimize import Momentum, Step
from fedsparq.protocols import Optimizer

LAYOUT = Layout.of({"w": (3,)})


def walk(optimizer: Optimizer, means: list[list[float]]) -> list[list[float]]:
    """The models after each step, from zero."""
    model, state, path = np.zeros(3, np.float32), optimizer.init(LAYOUT), []
    for mean in means:
        before = {name: array.copy() for name, array in state.items()}
        given, kept = np.array(mean, np.float32), model.copy()
        following, after = optimizer.step(model, given, state)
        assert np.array_equal(model, kept), "the model given is not changed"
        assert np.array_equal(given, mean), "nor the mean"
        assert all(np.array_equal(state[name], array) for name, array in before.items()), "nor the state"
        assert following.dtype == np.float32
        model, state = following, after
        path.append(model.tolist())
    return path


def test_plain_step_is_the_sum_of_the_means() -> None:
    assert Step().init(LAYOUT) == {}
    assert walk(Step(), [[1, 2, 3], [1, 0, -1]]) == [[1, 2, 3], [2, 2, 2]]


def test_momentum_is_a_geometric_series() -> None:
    """With a constant mean the velocity after n rounds is (1 - b^n) / (1 - b) of it."""
    path = np.array(walk(Momentum(0.5), [[1, -2, 0]] * 6))
    velocity = (1 - 0.5 ** np.arange(1, 7)) / (1 - 0.5)
    assert np.array_equal(path, np.outer(np.cumsum(velocity), [1, -2, 0]))


def test_no_momentum_is_the_plain_step() -> None:
    means = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32).tolist()
    assert walk(Momentum(0.0), means) == walk(Step(), means)


def test_restart_drops_the_velocity_where_the_mean_points_against_it() -> None:
    along, against = [2.0, 0.0, 0.0], [-1.0, 0.5, 0.0]
    assert walk(Momentum(0.5, restart=True), [along, along, against, against]) == [
        [2, 0, 0],
        [2 + 3, 0, 0],
        [5 - 1, 0.5, 0],
        [4 - 1.5, 0.5 + 0.75, 0],
    ]
    plain = walk(Momentum(0.5), [along, along, against])
    assert plain[2] == [5 + 0.5 * 3 - 1, 0.5, 0]


def test_restart_at_a_right_angle_and_from_nothing() -> None:
    """Not only against: a velocity that says nothing of the mean is dropped too."""
    path = walk(Momentum(0.5, restart=True), [[1, 0, 0], [0, 1, 0]])
    assert path == [[1, 0, 0], [1, 1, 0]]


@pytest.mark.parametrize("momentum", [1.0, -0.1, float("nan"), "much"])
def test_impossible_momentum_is_refused(momentum: object) -> None:
    with pytest.raises(OptionError, match=r"momentum=.* is not possible for Momentum"):
        Momentum(momentum)  # type: ignore[arg-type]
