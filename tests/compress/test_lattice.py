"""Levels on a common support: on the support alone, never longer than the clip, and nothing is lost."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsparq import Layout, method
from fedsparq.aggregate import Support
from fedsparq.compress.lattice import CommonLattice
from fedsparq.errors import OptionError, WireError
from fedsparq.federate.client import Client, Trained
from fedsparq.federate.messages import Broadcast
from fedsparq.federate.model import Model
from fedsparq.federate.store import MemoryStore
from fedsparq.methods import resolver
from fedsparq.payload.support import RoundPlan, SupportPlan, levels_on
from fedsparq.protocols import RoundContext
from fedsparq.wire import decode, encode

LAYOUT = Layout.of({"a": (7, 9), "b": (40,), "c": (1,)})


def plan(step: float, clip: float = 0.0, count: int = 30) -> RoundPlan:
    support = SupportPlan.of_indices(LAYOUT.size, count, 5, np.array([3, 70], np.uint32))
    return RoundPlan(support, step, clip=clip or math.inf)


def indices_of(said: RoundPlan) -> np.ndarray:
    assert said.support is not None
    return said.support.indices(LAYOUT.size)


updates = st.tuples(st.integers(0, 2**32), st.sampled_from([1e-4, 0.1, 30.0])).map(
    lambda drawn: np.random.default_rng(drawn[0]).laplace(0, drawn[1], LAYOUT.size).astype(np.float32)
)


@given(updates, st.sampled_from([0.01, 0.5]), st.sampled_from([0.0, 0.2, 4.0]), st.integers(1, 9))
def test_against_a_straight_line_reference(update: np.ndarray, step: float, clip: float, top: int) -> None:
    said = plan(step, clip)
    payload, after = CommonLattice(top).compress(update, LAYOUT, {}, np.random.default_rng(0), RoundContext(said))
    assert after == {}
    support = indices_of(said)
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
        with pytest.raises(OptionError):
            make("fedsparq-private")


def test_every_coordinate_comes_round() -> None:
    support, seen = Support(fraction=0.1, known=0.5), set()
    state = support.init(LAYOUT)
    for _ in range(400):
        chosen = indices_of(support.plan(LAYOUT, state))
        assert len(chosen) == support.count(LAYOUT)
        seen |= set(chosen.tolist())
        state = support.learn(state, chosen, np.where(chosen < 20, 1.0, 0.0).astype(np.float32))
    assert seen == set(range(LAYOUT.size))
    often = indices_of(support.plan(LAYOUT, state))
    assert sum(chosen < 20 for chosen in often) >= 5


def test_small_layers_come_whole_in_every_round() -> None:
    """Of 104 coordinates half: c (1) and b (40) fit into four fifths of it, a (63) does not."""
    support = Support(fraction=0.5, known=0.5, small=0.8)
    state = support.init(LAYOUT)
    for number in range(5):
        chosen = set(indices_of(support.plan(LAYOUT, state)).tolist())
        assert len(chosen) == 52
        assert set(range(63, 104)) <= chosen
        state = support.learn(state, np.array(sorted(chosen)), np.full(52, 0.1 * number, np.float32))
    none = indices_of(Support(fraction=0.5, small=0.001).plan(LAYOUT, state))
    assert not set(range(63, 104)) <= set(none.tolist())


SOUND: dict[str, np.ndarray] = {
    "seed": np.array([1], np.uint64),
    "count": np.array([5]),
    "step": np.array([0.5], np.float32),
    "top": np.array([15]),
    "clip": np.array([0.3]),
    "variance": np.array([2.0]),
}


def test_a_plan_is_read_as_it_was_written() -> None:
    for said in (plan(0.5, 0.25), RoundPlan(clip=3.0), RoundPlan.of_arrays(SOUND), RoundPlan()):
        again = RoundPlan.of_arrays(said.arrays())
        assert again.arrays().keys() == said.arrays().keys()
        assert all((again.arrays()[name] == array).all() for name, array in said.arrays().items())
    assert RoundPlan.of_arrays(SOUND).arrays().keys() == SOUND.keys()


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": None},
        {"seed": None},
        {"step": None},
        {"seed": np.array([2**63], np.uint64)},
        {"seed": np.array([1, 2], np.uint64)},
        {"seed": np.array([1])},
        {"seed": np.array([], np.uint64)},
        {"count": np.array([-1])},
        {"count": np.array([105.0])},
        {"listed": np.zeros(2, np.float32)},
        {"listed": np.zeros((13, 1), np.uint8)},
        *({"step": np.array([step], np.float32)} for step in (0, -0.5, np.inf, np.nan)),
        *({"top": np.array([top])} for top in (-1, 32768, 2**40)),
        *({"clip": np.array([clip])} for clip in (-1.0, 0.0, np.nan)),
        *({"variance": np.array([variance])} for variance in (-1.0, np.inf, np.nan, 1e300)),
        {"nonsense": np.zeros(1)},
    ],
)
def test_hostile_plans_are_refused_when_they_are_read(wrong: dict[str, np.ndarray | None]) -> None:
    arrays = {name: array for name, array in {**SOUND, **wrong}.items() if array is not None}
    with pytest.raises(WireError):
        RoundPlan.of_arrays(arrays)
    with pytest.raises(WireError):
        Broadcast.decode(replace(BROADCAST, plan=_Said(arrays)).encode())  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"count": np.array([105])}, {"listed": np.zeros(12, np.uint8)}])
def test_a_plan_for_another_model_is_refused_before_training(wrong: dict[str, np.ndarray]) -> None:
    def train(*_: object) -> Trained:
        raise AssertionError("nothing may be trained")

    message = replace(BROADCAST, plan=RoundPlan.of_arrays({**SOUND, **wrong})).encode()
    with pytest.raises(WireError):
        Client(0, LAYOUT, train, MemoryStore(), resolver()).answer(message)


class _Said:
    """A plan that nothing has checked."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self._arrays = arrays

    def arrays(self) -> dict[str, np.ndarray]:
        return self._arrays


_METHOD = method("fedsparq-private")
assert _METHOD.identity is not None
BROADCAST = Broadcast(
    1, None, LAYOUT.digest, _METHOD.identity, 0, False, (Model(np.zeros(LAYOUT.size, np.float32)).encode(LAYOUT),)
)


def test_what_is_not_on_the_lattice_is_refused() -> None:
    said = plan(0.5)
    support = indices_of(said)
    elsewhere = np.setdiff1d(np.arange(LAYOUT.size), support)[:1]
    from fedsparq import Payload

    floats = Payload.sparse(LAYOUT, support[:2], np.ones(2, np.float32))
    with pytest.raises(WireError):
        levels_on(support, np.float32(0.5), floats)
    ones, rng = np.ones(LAYOUT.size, np.float32), np.random.default_rng(0)
    payload, _ = CommonLattice(3).compress(ones, LAYOUT, {}, rng, RoundContext(said))
    with pytest.raises(WireError):
        levels_on(support, np.float32(0.25), payload)
    with pytest.raises(WireError):
        levels_on(np.concatenate([support[1:], elsewhere]), np.float32(0.5), payload)
