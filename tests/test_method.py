"""A method's five parts: checked when it is made, each replaceable alone; and the name that others know it by."""

import json
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from fedsparq import Identity, Layout, Mean, Method, Payload, Proximal, Step, Update, method, whole_round
from fedsparq.compress.feedback import FEEDBACK
from fedsparq.errors import OptionError, WireError
from fedsparq.layout import Arrays
from fedsparq.optimize import Adam, Momentum
from fedsparq.protocols import AggregatorTraits, ClientRule, CompressorTraits, FeedbackTraits, State

LAYOUT = Layout.of({"weight": (4, 5), "bias": (5,)})


class EveryTenth:
    """The compressor of the issue's example."""

    def init(self, layout: Layout) -> Arrays:
        return {"turn": np.zeros(1)}

    def compress(self, update: Any, layout: Layout, state: Arrays, rng: Any) -> tuple[Payload, Arrays]:
        indices = np.arange(int(state["turn"][0]) % 10, layout.size, 10, dtype=np.uint32)
        return Payload.sparse(layout, indices, update[indices]), {"turn": state["turn"] + 1}


class SignStep:
    def init(self, layout: Layout) -> Arrays:
        return {}

    def step(self, model: Any, mean: Any, state: Arrays) -> tuple[Any, Arrays]:
        return model + np.float32(0.001) * np.sign(mean), state


def first_only(updates: Sequence[Update], layout: Layout) -> tuple[Any, dict[int, float]]:
    return updates[0].payload.dense(), {u.client: float(u is updates[0]) for u in updates}


def update(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=LAYOUT.size).astype(np.float32)


def test_any_object_with_the_methods_is_a_part() -> None:
    made = Method(EveryTenth(), feedback="full", aggregator=whole_round(first_only), optimizer=SignStep())
    payload, state = made.compress(update(), made.init(LAYOUT), np.random.default_rng(0))
    assert payload.indices.tolist() == [0, 10, 20]
    assert state.compressor["turn"] == 1
    assert state.residual is not None
    np.testing.assert_array_equal(payload.dense() + state.residual, update())
    assert made.traits.conserves_mass


def test_parts_that_are_left_out() -> None:
    made = Method(EveryTenth())
    assert (made.aggregator, made.optimizer, made.rules) == (Mean(), Step(), ())
    assert made.feedback is FEEDBACK["off"]
    assert not made.traits.conserves_mass
    assert made.traits.is_contractive, "unless the compressor says otherwise"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a class": ({"compressor": EveryTenth}, "compressor .* got the class itself; make one of it"),
    "a function": ({"compressor": first_only}, "compressor .* of fedsparq.Compressor; got function"),
    "an optimizer class": ({"optimizer": Adam}, "optimizer .* got the class itself"),
    "an optimizer as aggregator": ({"aggregator": Step()}, "aggregator .* fedsparq.Aggregator; got Step"),
    "a plain function as aggregator": ({"aggregator": first_only}, "aggregator .* got function"),
    "an aggregator as optimizer": ({"optimizer": Mean()}, "optimizer .* fedsparq.Optimizer; got Mean"),
    "no feedback": ({"feedback": None}, "feedback .* fedsparq.Feedback; got NoneType"),
    "feedback by a wrong name": (
        {"feedback": "ful"},
        "no feedback 'ful'; there is full, scaled, kept-only",
    ),
    "a rule that is none": ({"rules": (SignStep(),)}, "rules .* fedsparq.ClientRule; got SignStep"),
    "a rule's class": ({"rules": (Proximal,)}, "rules .* got the class itself"),
    "one rule alone": ({"rules": Proximal()}, r"rules=\(Proximal\(...\),\)"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_part_is_named_when_the_method_is_made(kind: str) -> None:
    parts, words = WRONG[kind]
    with pytest.raises(OptionError, match=words):
        Method(**{"compressor": EveryTenth(), **parts})


def test_method_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        method("fedsparq").feedback = "off"  # type: ignore[misc]


@pytest.mark.parametrize(
    "part",
    [{"compressor": EveryTenth()}, {"feedback": "off"}, {"rules": ()}, {"optimizer": Adam()}],
    ids=["compressor", "feedback", "rules", "optimizer"],
)
def test_replacing_a_part_drops_the_name(part: dict[str, Any]) -> None:
    """Others, who make a method by its name, would make another one."""
    changed = replace(method("fedsparq"), **part)
    assert changed.identity is None
    assert (changed.name, dict(changed.options)) == ("", {})
    assert changed.label == f"{type(changed.compressor).__name__}, made by hand"


def test_other_server_parts_keep_the_name() -> None:
    known = method("fedsparq", beta=0.5)
    changed = known.with_server(optimizer=Adam(), aggregator=Mean("examples"))
    assert changed.identity == known.identity
    assert (changed.optimizer, changed.aggregator) == (Adam(), Mean("examples"))
    assert (changed.compressor, changed.feedback, changed.rules) == (known.compressor, known.feedback, known.rules)
    assert changed.with_server(optimizer=Step()).aggregator == Mean("examples"), "one at a time"
    with pytest.raises(OptionError, match="optimizer"):
        known.with_server(optimizer=Mean())  # type: ignore[arg-type]


def test_label_and_options() -> None:
    known = method("fedsparq", multiplier=2, beta=0.9)
    assert known.label == "fedsparq multiplier=2.0"
    assert known.name == "fedsparq"
    assert known.options["beta"] == 0.9
    assert set(known.options) >= {"beta", "multiplier", "scope", "rounding", "proximal_mu", "server_momentum"}
    assert known.optimizer == Momentum(0.01)


def test_equal_methods_are_equal() -> None:
    assert method("fedsparq") == method("fedsparq", beta=0.9)
    assert method("fedsparq") != method("fedsparq", beta=0.5)


def test_compressing_changes_neither_update_nor_state() -> None:
    for name in ("fedsparq", "dgc", "stc", "fedsparq-adaptive"):
        chosen, given = method(name), update()
        state = chosen.init(LAYOUT)
        for number in range(3):
            before, kept = {key: array.copy() for key, array in state.arrays().items()}, given.copy()
            _, after = chosen.compress(given, state, np.random.default_rng(number))
            assert np.array_equal(given, kept)
            assert all(np.array_equal(state.arrays()[key], array) for key, array in before.items())
            state = after


def test_memory_of_an_older_state_is_used_again() -> None:
    chosen, rng = method("fedsparq"), np.random.default_rng(0)
    first = chosen.init(LAYOUT)
    _, second = chosen.compress(update(1), first, rng)
    plain, _ = chosen.compress(update(2), second, rng)
    recycled, third = chosen.compress(update(2), second, rng, recycle=first)
    assert np.array_equal(plain.dense(), recycled.dense())
    assert np.shares_memory(third.residual, first.residual)  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_acknowledging_puts_the_rest_back(share: float) -> None:
    chosen = method("fedsparq")
    payload, state = chosen.compress(update(), chosen.init(LAYOUT), np.random.default_rng(0))
    kept = state.residual.copy()  # type: ignore[union-attr]
    after = chosen.acknowledge(state, payload, share)
    np.testing.assert_allclose(after.residual, kept + (1 - share) * payload.dense(), atol=1e-7)  # type: ignore[arg-type]
    assert np.array_equal(state.residual, kept), "a state is never changed"  # type: ignore[arg-type]
    assert after.compressor is state.compressor


class Adding(ClientRule):
    def __init__(self, amount: float) -> None:
        self.amount = np.float32(amount)

    def init(self, layout: Layout) -> Arrays:
        return {"times": np.zeros(1)}

    def start(self, model: Any, residual: Any, state: Arrays) -> Any:
        return model * 2 + self.amount

    def end(self, update: Any, state: Arrays) -> tuple[Any, Arrays]:
        return update * 2 + self.amount, {"times": state["times"] + self.amount}


def test_rules_act_one_after_the_other_each_with_its_state() -> None:
    made = Method(EveryTenth(), rules=[Adding(1), Adding(10)])  # type: ignore[arg-type]
    state = made.init(LAYOUT)
    zeros = np.zeros(LAYOUT.size, np.float32)
    assert set(made.start(zeros, state)) == {2 * 1 + 10}
    changed, after = made.end(zeros, state)
    assert set(changed) == {2 * 1 + 10}
    assert [float(arrays["times"][0]) for arrays in after.rules] == [1, 10]
    assert [float(arrays["times"][0]) for arrays in state.rules] == [0, 0]
    assert made.gradient_hook(state) is None, "neither looks at gradients"
    _, compressed = made.compress(changed, after, np.random.default_rng(0))
    assert compressed.rules == after.rules


def test_gradient_hook_calls_only_rules_that_look() -> None:
    made = Method(EveryTenth(), rules=(Adding(1), Weight(2.0), Weight(3.0)))
    hook = made.gradient_hook(made.init(LAYOUT))
    assert hook is not None
    gradient = np.ones(3)
    hook(gradient, np.ones(3), np.zeros(3))
    assert gradient.tolist() == [6.0] * 3


class Weight(ClientRule):
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def gradient(self, gradient: Any, weights: Any, start: Any, state: Arrays) -> None:
        gradient *= self.factor


def test_identity_travels_and_tells_apart() -> None:
    one = Identity("mine", "1", {"b": 2, "a": 0.5})
    assert one.encode() == b'["mine","1",{"a":0.5,"b":2}]', "in one order, however they were given"
    assert Identity.decode(one.encode()) == one
    same = Identity("mine", "1", {"a": 0.5, "b": 2}, label="mine with a label")
    assert (same, same.digest) == (one, one.digest)
    others = [
        Identity("other", "1", one.options),
        Identity("mine", "2", one.options),
        Identity("mine", "1", {"a": 0.5, "b": 3}),
        Identity("mine", "1", {"a": 0.5}),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 5


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Identity("mine", "1", {"a": 1, "b": "x"}), ""),
        (Identity("yours", "1", {"a": 1, "b": "x"}), "'yours' instead of 'mine'"),
        (Identity("mine", "2", {"a": 9, "b": "x"}), "version 2 of 'mine' instead of version 1"),
        (Identity("mine", "1", {"a": 2, "b": "x"}), "a=2 instead of 1"),
        (Identity("mine", "1", {"a": 2, "b": "y"}), "a=2 instead of 1, b=y instead of x"),
        (Identity("mine", "1", {"a": 1}), "b=(no such option) instead of x"),
        (Identity("mine", "1", {"a": 1, "b": "x", "c": None}), "c=None instead of (no such option)"),
    ],
)
def test_difference_in_words(other: Identity, words: str) -> None:
    assert Identity("mine", "1", {"a": 1, "b": "x"}).difference(other) == words


def test_identity_that_cannot_be_read_is_refused() -> None:
    for wrong in ([], ["a"], ["a", "b"], ["a", 1, {}], ["a", "b", []], {"a": "b"}, 3, None):
        with pytest.raises(WireError, match="cannot be read"):
            Identity.decode(json.dumps(wrong).encode())


class Former:
    """A user's parts as they were written before there were traits."""

    class Compressor(EveryTenth):
        contractive, layerwise, offers = False, True, "words"

        def begin(self, state: Arrays, round: int) -> Arrays:
            return {"turn": np.full(1, round)}

    class Feedback:
        conserving, hears, needs = True, True, "words"

        def init(self, layout: Layout) -> Arrays:
            return {}

        def compress(self, *_: Any) -> Any: ...

        def acknowledge(self, state: Arrays, payload: Payload, share: float) -> Arrays:
            return state

    class Rule(ClientRule):
        learns_change, in_step, task = True, True, "plane"
        config: ClassVar = {"mu": 2.0}

    class Aggregator:
        weighting, always_steps = "examples", True

        def init(self, layout: Layout) -> Arrays:
            return {}

        def open(self, layout: Layout, state: Arrays) -> Any: ...


def test_attributes_of_before_there_were_traits_are_read_with_a_warning() -> None:
    parts = Former.Compressor(), Former.Feedback(), (Former.Rule(),), Former.Aggregator()
    with pytest.warns(DeprecationWarning, match="traits") as warned:
        made = Method(*parts)
    assert {str(each.message).split()[0] for each in warned} == {"Compressor", "Feedback", "Rule", "Aggregator"}
    expected = {
        "is_contractive": False,
        "is_layerwise": False,
        "has_common_support": False,
        "conserves_mass": True,
        "needs_acks": True,
        "needs_model_change": True,
        "requires_full_participation": True,
        "requires_own_server": True,
        "draws_per_round": True,
        "plans_rounds": False,
        "steps_without_replies": True,
        "weighs_by_examples": True,
    }
    assert {name: getattr(made.traits, name) for name in expected} == expected
    assert (made.traits.rules[0].task, made.traits.rules[0].config) == ("plane", {"mu": 2.0})
    assert made.begin(made.init(LAYOUT), 7).compressor["turn"] == 7


def with_traits(traits: Any, **more: Any) -> Any:
    return type("Made", (EveryTenth,), {"traits": traits, **more})()


@pytest.mark.parametrize(
    "compressor",
    [
        with_traits(FeedbackTraits()),
        with_traits({"is_contractive": False}),
        with_traits(CompressorTraits(draws_per_round=True)),
        with_traits(CompressorTraits(), begin=lambda self, state, round: state),
        with_traits(CompressorTraits(uses_plan=True)),
        with_traits(CompressorTraits(requires="words")),
    ],
)
def test_traits_that_cannot_be_are_refused_when_the_method_is_made(compressor: Any) -> None:
    with pytest.raises(OptionError):
        Method(compressor)


def test_a_plan_that_is_none_is_refused() -> None:
    class Planner(Former.Aggregator):
        traits = AggregatorTraits(plans_rounds=True)

        def plan(self, layout: Layout, state: Arrays) -> Any:
            return {"clip": np.ones(1)}

    with pytest.raises(OptionError):
        Method(EveryTenth(), aggregator=Planner()).init(LAYOUT)
    with pytest.raises(OptionError):
        method("fedsparq-private").with_server(aggregator=Mean())
    with pytest.raises(OptionError):
        AggregatorTraits(weighting="exampels")  # type: ignore[arg-type]


def test_a_state_keeps_its_plan_in_its_file(tmp_path: Path) -> None:
    state = method("fedsparq-private").init(LAYOUT)
    assert state.plan is not None
    state.save(tmp_path / "state")
    again = State.load(tmp_path / "state", LAYOUT)
    assert again.compressor == {}
    assert again.plan is not None
    assert again.arrays().keys() == {f"compressor.plan.{name}" for name in ("seed", "count", "step")} | {
        "feedback.residual"
    }
