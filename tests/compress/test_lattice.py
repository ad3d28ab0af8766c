"""Levels on a common support: on the support alone, never longer than the clip, and nothing is lost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsparq import Layout, method
from fedsparq.aggregate import Support
from fedsparq.compress.lattice import CommonLattice
from fedsparq.errors import OptionError, WireError
from fedsparq.payload.support import levels_on, plan_support, support_of
from fedsparq.wire import decode, encode

LAYOUT = Layout.of({"a": (7, 9), "b": (40,), "c": (1,)})


def plan(step: float, clip: float = 0.0, count: int = 30) -> dict[str, np.ndarray]:
    made = plan_support(LAYOUT.size, count, 5, np.array([3, 70], np.uint32)) | {"step": np.array([step], np.float32)}
    return made | ({"clip": np.array([clip])} if clip else {})


updates = st.tuples(st.integers(0, 2**32), st.sampled_from([1e-4, 0.1, 30.0])).map(
    lambda drawn: np.random.default_rng(drawn[0]).laplace(0, drawn[1], LAYOUT.size).astype(np.float32)
)


@given(updates, st.sampled_from([0.01, 0.5]), st.sampled_from([0.0, 0.2, 4.0]), st.integers(1, 9))
def test_against_a_straight_line_reference(update: np.ndarray, step: float, clip: float, top: int) -> None:
    said = plan(step, clip)
    state = {f"plan.{name}": array for name, array in said.items()}
    payload, after = CommonLattice(top).compress(update, LAYOUT, state, np.random.default_rng(0))
    assert after == state
    support = support_of(said, LAYOUT.size)
    assert len(support) == 32
    assert {3, 70} <= set(support)
    expected = np.zeros(LAYOUT.size)
    norm = np.sqrt(sum(float(update[i]) ** 2 for i in support))
    for i in support:
        value = float(update[i]) * (min(1.0, clip * (1 - 1e-6) / norm) if clip and norm else 1.0)
        level = int(value / float(np.float32(step))) if clip else round(value / float(np.float32(step)))
        expected[i] = max(-top, min(top, level))
    np.testing.assert_array_equal(levels_on(support, np.float32(step), payload), expected[support].astype(int))
    np.testing.assert_allclose(payload.dense(), np.float32(step) * expected, rtol=1e-6)
    if clip:
        assert payload.norm <= clip
    assert decode(encode(payload), LAYOUT).dense().tobytes() == payload.dense().tobytes()


@given(updates, st.sampled_from([0.0, 0.3]))
def test_what_is_not_sent_waits(update: np.ndarray, clip: float) -> None:
    chosen = method("fedsparq-private", fraction=0.2)
    state, total, received = chosen.init(LAYOUT), np.zeros(LAYOUT.size), np.zeros(LAYOUT.size)
    for _ in range(3):
        payload, state = chosen.compress(update, state.with_plan(plan(0.05, clip)), np.random.default_rng(0))
        total += update
        received += payload.dense()
        assert state.residual is not None
        scale = float(np.abs(total).max()) + 1e-3
        np.testing.assert_allclose(received + state.residual, total, atol=1e-5 * scale, rtol=1e-4)


def test_in_another_flower_app_it_is_refused() -> None:
    flower = pytest.importorskip("fedsparq.flower")
    for make in (flower.FedSparQ, lambda name: flower.compress(name)):
        with pytest.raises(OptionError, match="plans each round"):
            make("fedsparq-private")


def test_every_coordinate_comes_round() -> None:
    support, seen = Support(fraction=0.1, known=0.5), set()
    state = support.init(LAYOUT)
    for _ in range(400):
        chosen = support_of(support.plan(LAYOUT, state), LAYOUT.size)
        assert len(chosen) == support.count(LAYOUT)
        seen |= set(chosen.tolist())
        state = support.learn(state, chosen, np.where(chosen < 20, 1.0, 0.0).astype(np.float32))
    assert seen == set(range(LAYOUT.size))
    often = support_of(support.plan(LAYOUT, state), LAYOUT.size)
    assert sum(chosen < 20 for chosen in often) >= 5


def test_small_layers_come_whole_in_every_round() -> None:
    """Of 104 coordinates half: c (1) and b (40) fit into four fifths of it, a (63) does not."""
    support = Support(fraction=0.5, known=0.5, small=0.8)
    state = support.init(LAYOUT)
    for number in range(5):
        chosen = set(support_of(support.plan(LAYOUT, state), LAYOUT.size).tolist())
        assert len(chosen) == 52
        assert set(range(63, 104)) <= chosen
        state = support.learn(state, np.array(sorted(chosen)), np.full(52, 0.1 * number, np.float32))
    none = support_of(Support(fraction=0.5, small=0.001).plan(LAYOUT, state), LAYOUT.size)
    assert not set(range(63, 104)) <= set(none.tolist())


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"seed": np.array([1], np.uint64)},
        {"seed": np.array([1], np.uint64), "count": np.array([105])},
        {"seed": np.array([2**63], np.uint64), "count": np.array([5])},
        {"seed": np.array([1], np.uint64), "count": np.array([-1])},
        {"seed": np.array([1], np.uint64), "count": np.array([5]), "listed": np.zeros(2, np.float32)},
    ],
)
def test_hostile_plans_are_refused(wrong: dict[str, np.ndarray]) -> None:
    with pytest.raises(WireError, match="plan of a round"):
        support_of(wrong, LAYOUT.size)


def test_what_is_not_on_the_lattice_is_refused() -> None:
    said = plan(0.5)
    support = support_of(said, LAYOUT.size)
    elsewhere = np.setdiff1d(np.arange(LAYOUT.size), support)[:1]
    from fedsparq import Payload

    floats = Payload.sparse(LAYOUT, support[:2], np.ones(2, np.float32))
    with pytest.raises(WireError, match="lattice"):
        levels_on(support, np.float32(0.5), floats)
    state = {f"plan.{name}": array for name, array in said.items()}
    payload, _ = CommonLattice(3).compress(np.ones(LAYOUT.size, np.float32), LAYOUT, state, np.random.default_rng(0))
    with pytest.raises(WireError, match="lattice"):
        levels_on(support, np.float32(0.25), payload)
    with pytest.raises(WireError, match="beside"):
        levels_on(np.concatenate([support[1:], elsewhere]), np.float32(0.5), payload)
