"""FedAdam and FedYogi: against the formulas of Reddi 2021 (Algorithm 2) in float64, and against Flower's strategies."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fedsparq.errors import OptionError
from fedsparq.layout import Layout
from fedsparq.optimize import Adam, Yogi

LAYOUT = Layout.of({"w": (4, 5), "b": (5,)})
ROUNDS = 20
MEANS = np.random.default_rng(0).normal(scale=0.05, size=(ROUNDS, LAYOUT.size)) * (np.arange(LAYOUT.size) % 7 > 0)
START = np.random.default_rng(1).normal(size=LAYOUT.size)


def ours(optimizer: Any) -> np.ndarray:
    model, state, path = START.astype(np.float32), optimizer.init(LAYOUT), []
    for mean in MEANS.astype(np.float32):
        before = {name: array.copy() for name, array in state.items()}
        model, after = optimizer.step(model, mean, state)
        assert all(np.array_equal(state[name], array) for name, array in before.items()), "a state is never changed"
        assert {name: array.dtype for name, array in after.items()} == {"first": np.float32, "second": np.float32}
        state = after
        path.append(model)
    return np.array(path)


def paper(kind: str, lr: float, beta_1: float, beta_2: float, tau: float) -> np.ndarray:
    """Line by line, from m = v = 0."""
    x, m, v, path = START.copy(), np.zeros(LAYOUT.size), np.zeros(LAYOUT.size), []
    for delta in MEANS:
        m = beta_1 * m + (1 - beta_1) * delta
        if kind == "adam":
            v = beta_2 * v + (1 - beta_2) * delta**2
        else:
            v = v - (1 - beta_2) * delta**2 * np.sign(v - delta**2)
        x = x + lr * m / (np.sqrt(v) + tau)
        path.append(x)
    return np.array(path)


@pytest.mark.parametrize("kind", ["adam", "yogi"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 0.01, "tau": 1e-2},
        {"beta_1": 0.0, "beta_2": 0.0},
        {"beta_1": 0.5, "beta_2": 0.999, "lr": 1.0, "tau": 0.1},
    ],
)
def test_formulas_of_the_paper(kind: str, options: dict[str, float]) -> None:
    made = {"adam": Adam, "yogi": Yogi}[kind](**options)
    reference = paper(kind, made.lr, made.beta_1, made.beta_2, made.tau)
    np.testing.assert_allclose(ours(made), reference, rtol=1e-4, atol=1e-5)


def test_first_step_in_closed_form() -> None:
    """Of a mean d: lr (1 - b1) d / (sqrt(1 - b2) |d| + tau), no bias correction."""
    mean = np.array([0.2, -0.2, 0.0], np.float32)
    layout = Layout.of({"w": (3,)})
    for kind in (Adam, Yogi):
        made = kind(lr=0.5, beta_1=0.9, beta_2=0.99, tau=0.01)
        model, state = made.step(np.zeros(3, np.float32), mean, made.init(layout))
        size = 0.5 * 0.1 * 0.2 / (0.1 * 0.2 + 0.01)
        np.testing.assert_allclose(model, [size, -size, 0], rtol=1e-6)
        np.testing.assert_allclose(state["first"], 0.1 * mean, rtol=1e-6)
        np.testing.assert_allclose(state["second"], 0.01 * mean**2, rtol=1e-5)


def test_yogi_is_slower_to_grow_and_to_forget() -> None:
    """Its second moment moves by (1 - b2) d^2, towards d^2, however far that is."""
    made, layout = Yogi(beta_2=0.9), Layout.of({"w": (1,)})
    state = {**made.init(layout), "second": np.array([1.0], np.float32)}
    _, small = made.step(np.zeros(1, np.float32), np.array([0.1], np.float32), state)
    assert small["second"][0] == pytest.approx(1 - 0.1 * 0.01)
    _, large = made.step(np.zeros(1, np.float32), np.array([3.0], np.float32), state)
    assert large["second"][0] == pytest.approx(1 + 0.1 * 9)
    _, adam = Adam(beta_2=0.9).step(np.zeros(1, np.float32), np.array([0.1], np.float32), state)
    assert adam["second"][0] == pytest.approx(0.9 + 0.1 * 0.01)


@pytest.mark.parametrize(("key", "value"), [("lr", 0.0), ("lr", -1.0), ("beta_1", 1.0), ("beta_2", -0.1), ("tau", 0.0)])
def test_impossible_options_are_refused(key: str, value: float) -> None:
    for kind in (Adam, Yogi):
        with pytest.raises(OptionError, match=f"{key}=.* is not possible for {kind.__name__}"):
            kind(**{key: value})


@dataclass(frozen=True)
class Answered:
    """As much of a Flower message as strategies look at; a real one exists only within a Flower run."""

    content: Any

    def has_error(self) -> bool:
        return False


def flowers(strategy: Any) -> np.ndarray:
    """What a strategy of Flower's makes of the same means: one node, whose model is the last one plus the mean."""
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

    model, path = START.copy(), []
    for number, mean in enumerate(MEANS, start=1):
        strategy.current_arrays = {"w": model}
        arrays, metrics = ArrayRecord({"w": Array(model + mean)}), MetricRecord({"num-examples": 1})
        aggregated, _ = strategy.aggregate_train(number, [Answered(RecordDict({"arrays": arrays, "metrics": metrics}))])
        model = aggregated["w"].numpy()
        path.append(model)
    return np.array(path)


def test_yogi_is_flowers() -> None:
    strategies = pytest.importorskip("flwr.serverapp.strategy")
    theirs = flowers(strategies.FedYogi(eta=0.05, beta_1=0.8, beta_2=0.95, tau=1e-2))
    np.testing.assert_allclose(ours(Yogi(lr=0.05, beta_1=0.8, beta_2=0.95, tau=1e-2)), theirs, rtol=1e-4, atol=1e-5)


def test_adam_is_flowers_but_for_its_bias_correction() -> None:
    """Flower multiplies the learning rate of round t by sqrt(1 - b2^(t+1)) / (1 - b1^(t+1)), as Kingma & Ba do (who
    count t from one, not from two). The paper of FedAdam does not, nor do we: with the rates given so, round by round,
    both are the same."""
    strategies = pytest.importorskip("flwr.serverapp.strategy")
    theirs = flowers(strategies.FedAdam(eta=0.05, beta_1=0.8, beta_2=0.95, tau=1e-2))
    made = Adam(lr=0.05, beta_1=0.8, beta_2=0.95, tau=1e-2)
    model, state, path = START.astype(np.float32), made.init(LAYOUT), []
    for number, mean in enumerate(MEANS.astype(np.float32), start=1):
        after, state = made.step(model, mean, state)
        correction = np.sqrt(1 - 0.95 ** (number + 1)) / (1 - 0.8 ** (number + 1))
        model = (model + correction * (after - model)).astype(np.float32)
        path.append(model)
    np.testing.assert_allclose(np.array(path), theirs, rtol=1e-4, atol=1e-5)
