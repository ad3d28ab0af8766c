"""Options: checked by their annotations, completed by their defaults, refused in one sentence."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from fedsparq.errors import OptionError
from fedsparq.options import (
    Count,
    Decay,
    Fraction,
    NonNegative,
    Positive,
    component,
    options_model,
    parse_bytes,
    validate_options,
)

Scope = Literal["layer", "global"]


@component
class Average:
    beta: Decay = 0.9
    rounds: int = 3
    scope: Scope = "layer"


@component
class Of:
    inner: Average
    most: Count = 5


def recipe(
    fraction: Fraction = 0.1, levels: int = 64, scope: Scope = "layer", name: str = "", exact: bool = False, any=None
):
    """As a method's."""


def test_a_component_is_a_frozen_value():
    made = Average(0.5, scope="global")
    assert made == Average(beta=0.5, rounds=3, scope="global") != Average()
    assert hash(made) == hash(Average(0.5, 3, "global"))
    assert repr(Average()) == "Average(beta=0.9, rounds=3, scope='layer')"
    with pytest.raises(AttributeError):
        made.beta = 0.1


def test_whole_numbers_become_floats_where_floats_are_meant():
    assert isinstance(Average(beta=0).beta, float)
    assert isinstance(validate_options("r", recipe, {"fraction": 1})["fraction"], float)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 7}, "beta=7 is not possible for Average: it must be less than 1"),
        ({"beta": -0.1}, "beta=-0.1 is not possible for Average: it must be greater than or equal to 0"),
        ({"beta": float("nan")}, "beta=nan is not possible for Average: it must be a finite number such as 0.9"),
        ({"beta": "much"}, "beta='much' is not possible for Average: it must be a number such as 0.9"),
        ({"beta": True}, "beta=True is not possible for Average: it must be a number such as 0.9"),
        ({"rounds": 2.5}, "rounds=2.5 is not possible for Average: it must be a whole number such as 3"),
        ({"scope": "client"}, "scope='client' is not possible for Average: it must be 'layer' or 'global'"),
        ({"betta": 1}, "Average has no option 'betta'; its options are: beta=0.9, rounds=3, scope=layer"),
    ],
)
def test_what_a_component_refuses(options, message):
    with pytest.raises(OptionError) as caught:
        Average(**options)
    assert str(caught.value) == message


def test_a_positional_argument_is_called_by_its_name():
    with pytest.raises(OptionError, match=r"rounds=1\.5 is not possible for Average"):
        Average(0.5, 1.5)


def test_parts_of_a_component():
    assert Of(inner=Average(0.1)).inner.beta == 0.1
    with pytest.raises(OptionError, match="inner=3 is not possible for Of: it must be an instance of Average"):
        Of(inner=3)
    with pytest.raises(OptionError, match="Of needs the option 'inner'"):
        Of()
    with pytest.raises(OptionError, match="its options are: inner, most=5"):
        Of(inner=Average(), least=1)


@pytest.mark.parametrize(
    ("kind", "allowed", "refused"),
    [
        (Fraction, [1e-9, 1.0], [0.0, 1.1, -1.0]),
        (Decay, [0.0, 0.999], [1.0, -0.1]),
        (Positive, [1e-9, 1e9], [0.0, float("inf")]),
        (NonNegative, [0.0, 1e300], [-1e-9, float("inf")]),
        (Count, [1, 10**9], [0, 1.0]),
    ],
)
def test_the_ranges_that_components_share(kind, allowed, refused):
    def one(option: kind = allowed[0]): ...

    for value in allowed:
        assert validate_options("one", one, {"option": value}) == {"option": value}
    for value in refused:
        with pytest.raises(OptionError, match="option="):
            validate_options("one", one, {"option": value})


def test_all_options_in_their_order_with_their_defaults():
    every = validate_options("r", recipe, {"scope": "global"})
    assert every == {"fraction": 0.1, "levels": 64, "scope": "global", "name": "", "exact": False, "any": None}
    assert list(every) == ["fraction", "levels", "scope", "name", "exact", "any"]
    assert options_model(recipe) is options_model(recipe)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fraction": 2}, "fraction=2 is not possible for method 'r': it must be less than or equal to 1"),
        ({"fraction": "most"}, "it must be a number such as 0.1"),
        ({"levels": 2.0}, "it must be a whole number such as 64"),
        ({"levels": False}, "it must be a whole number such as 64"),
        ({"name": 3}, "name=3 is not possible for method 'r': it must be a word"),
        ({"exact": 1}, "it must be true or false"),
        ({"scope": "client"}, "it must be 'layer' or 'global'"),
        ({"other": 1}, "method 'r' has no option 'other'; its options are: fraction=0.1, levels=64, scope=layer"),
    ],
)
def test_what_a_recipe_refuses(options, message):
    with pytest.raises(OptionError) as caught:
        validate_options("r", recipe, options)
    assert message in str(caught.value)


def test_a_recipe_without_options_and_one_that_needs_some():
    with pytest.raises(OptionError, match="method 'plain' has no option 'x'; its options are: none"):
        validate_options("plain", lambda: None, {"x": 1})

    def needs(width: Annotated[int, Field(ge=2)], *rest, **more): ...

    assert validate_options("needs", needs, {"width": 2}) == {"width": 2}
    with pytest.raises(OptionError, match="method 'needs' needs the option 'width'"):
        validate_options("needs", needs, {})


def test_classes_have_options_too():
    class Plain:
        def __init__(self, lr: Positive = 1):
            self.lr = lr

    assert validate_options("plain", Plain, {}) == {"lr": 1.0}
    assert validate_options("average", Average, {"beta": 0}) == {"beta": 0.0, "rounds": 3, "scope": "layer"}
    with pytest.raises(OptionError, match="optimizer 'plain' has no option 'x'; its options are: lr=1"):
        validate_options("plain", Plain, {"x": 1}, what="optimizer")


def test_an_option_may_be_called_like_a_method_of_pydantics(recwarn):
    def odd(copy: int = 1, model_size: int = 2): ...

    assert validate_options("odd", odd, {"copy": 3}) == {"copy": 3, "model_size": 2}
    assert not recwarn.list


def test_annotations_that_cannot_be_resolved():
    def lost(width: "Nowhere" = 1): ...  # noqa: F821

    with pytest.raises(OptionError, match="Nowhere"):
        validate_options("lost", lost, {})


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("20 kB", 20_000), ("5MB", 5_000_000), ("5 MB", 5_000_000), ("1.5 MiB", 1_572_864), ("1.5 KiB", 1536),
        ("4096", 4096), ("12 b", 12), (" 2 KIB ", 2048), (300, 300), ("2 gib", 2**31),
    ],
)  # fmt: skip
def test_amounts_of_bytes(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "kB", "abc", "20 parsecs", "-1", "-5 kB", "0", "0.2 B", "1e3", "5 kB/run", -3])
def test_what_is_no_parse_bytes(text):
    with pytest.raises(OptionError, match="byte"):
        parse_bytes(text)
