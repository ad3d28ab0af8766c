"""Which kinds of value may be registered."""

import pytest

from fedsparq.errors import OptionError, WireError
from fedsparq.payload import Codebook, Float32Values, Values, register_values
from fedsparq.payload import values as values_module
from fedsparq.payload.values import value_kind


@pytest.fixture(autouse=True)
def _registered_for_one_test(monkeypatch):
    monkeypatch.setattr(values_module, "_kinds", dict(values_module._kinds))


def kind(code, name="Own"):
    return type(name, (Float32Values,), {"code": code, "__module__": "own", "__qualname__": name})


@pytest.mark.parametrize("code", [64, 65, 66, 68, 130, 254])
def test_a_free_code(code):
    own = kind(code)
    assert register_values(own) is own
    assert value_kind(code, "a") is own


@pytest.mark.parametrize("code", [0, 1, 6, 11, 63, 67, 71, 251, 255, 256, -1, "64", None, 64.0])
def test_a_code_that_is_not_free(code):
    with pytest.raises(OptionError, match=r"from 64 to 254 with code & 3 != 3"):
        register_values(kind(code))


def test_a_code_that_is_taken():
    register_values(kind(64, "First"))
    with pytest.raises(OptionError, match=r"Second has code 64, which First already has"):
        register_values(kind(64, "Second"))


def test_a_class_that_is_defined_again_takes_its_own_place():
    register_values(kind(64))
    again = kind(64)
    register_values(again)
    assert value_kind(64, "a") is again


def test_what_is_no_kind_of_value():
    for thing in (int, Float32Values, 64, Float32Values.__init__):
        with pytest.raises(OptionError):
            register_values(thing)

    class Half(Values):
        code = 64

        def decode(self):
            return None

    with pytest.raises(OptionError, match="Half does not say how to __len__, join, read, write"):
        register_values(Half)


def test_every_third_code_is_a_codebook_and_an_unknown_one_is_named():
    assert {value_kind(code, "a") for code in range(3, 256, 4)} == {Codebook}
    with pytest.raises(WireError, match=r"'conv'.*code 200"):
        value_kind(200, "conv")
