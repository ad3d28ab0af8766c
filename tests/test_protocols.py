"""States as files, and what the parts of a method promise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsparq import METHODS, ClientRule, Layout, Method, State, method
from fedsparq.archive import pack, unpack
from fedsparq.compress.feedback import FEEDBACK
from fedsparq.errors import RunError
from fedsparq.methods.registry import AGGREGATORS, OPTIMIZERS
from fedsparq.protocols import Aggregator, Compressor, Feedback, Optimizer, RuleTraits, hooks_of, traits_of

LAYOUT = Layout.of({"weight": (4, 5), "bias": (5,)})


def advanced(name: str) -> State:
    """A state after three rounds."""
    chosen = method(name)
    state = chosen.init(LAYOUT)
    for number in range(3):
        rng = np.random.default_rng(number)
        _, state = chosen.compress(rng.normal(size=LAYOUT.size).astype(np.float32), state, rng)
    return state


def assert_same(left: State, right: State) -> None:
    assert left.layout == right.layout
    assert len(left.rules) == len(right.rules)
    assert left.arrays().keys() == right.arrays().keys()
    for name, array in right.arrays().items():
        assert (left.arrays()[name].dtype, left.arrays()[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(left.arrays()[name], array)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_state_is_saved_and_loaded(tmp_path: Path, name: str) -> None:
    state, path = advanced(name), tmp_path / "deep" / "state.safetensors"
    state.save(path)
    loaded = State.load(str(path), LAYOUT)
    assert_same(loaded, state)
    update = np.random.default_rng(9).normal(size=LAYOUT.size).astype(np.float32)
    outcomes = [method(name).compress(update, one, np.random.default_rng(1)) for one in (state, loaded)]
    assert np.array_equal(outcomes[0][0].dense(), outcomes[1][0].dense()), "it goes on as if it had never been away"
    assert_same(outcomes[0][1], outcomes[1][1])


def test_rules_without_a_state_are_still_counted(tmp_path: Path) -> None:
    chosen = Method(method("fedsparq").compressor, rules=(ClientRule(),) * 12)
    state = chosen.init(LAYOUT)
    state.save(tmp_path / "state")
    loaded = State.load(tmp_path / "state", LAYOUT)
    assert loaded.rules == ({},) * 12
    assert chosen.start(np.zeros(3, np.float32), loaded).tolist() == [0, 0, 0]


def test_rule_1_and_rule_11_are_kept_apart() -> None:
    rules = tuple({"x": np.array([number])} for number in range(12))
    state = State(LAYOUT, {"a.b": np.ones(2)}, {"residual": np.zeros(25, np.float32)}, rules)
    again = State.of_arrays(LAYOUT, state.arrays(), 12)
    assert [int(arrays["x"][0]) for arrays in again.rules] == list(range(12))
    assert set(again.compressor) == {"a.b"}
    assert again.residual is not None


def test_state_of_another_model_or_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    advanced("fedsparq").save(path)
    with pytest.raises(RunError, match="another version or for another model"):
        State.load(path, Layout.of({"other": (25,)}))
    about, arrays = unpack(path.read_bytes())
    path.write_bytes(pack({**about, "version": 99}, arrays))
    with pytest.raises(RunError, match="another version"):
        State.load(path, LAYOUT)


def test_damaged_or_missing_state_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with pytest.raises(RunError, match="No such file"):
        State.load(path, LAYOUT)
    advanced("fedsparq").save(path)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(RunError, match="cannot be read: its checksum"):
        State.load(path, LAYOUT)


def test_our_parts_keep_the_protocols() -> None:
    for name in METHODS:
        made = method(name)
        parts: dict[Any, Any] = {
            Compressor: made.compressor,
            Feedback: made.feedback,
            Aggregator: made.aggregator,
            Optimizer: made.optimizer,
        }
        assert all(isinstance(part, protocol) for protocol, part in parts.items())
    assert all(isinstance(feedback, Feedback) for feedback in FEEDBACK.values())
    assert all(isinstance(make(), Aggregator) for make in AGGREGATORS.values())
    assert all(isinstance(make(), Optimizer) for make in OPTIMIZERS.values())


def test_rule_does_nothing_unless_it_is_told() -> None:
    rule, model = ClientRule(), np.arange(3, dtype=np.float32)
    assert rule.init(LAYOUT) == {}
    assert traits_of(rule, RuleTraits) == RuleTraits()
    assert rule.start(model, None, {}) is model
    assert rule.end(model, {}) == (model, {})
    assert hooks_of(rule) == frozenset()
    rule.gradient(model, model, model, {})
    assert model.tolist() == [0, 1, 2]
