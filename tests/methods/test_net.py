"""All that every method makes is what it was: messages, states, the server's arrays, identities."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from net import CASES, LOOSE, Case, plays, written

from fedsparq.methods import METHODS
from fedsparq.payload.streams import ZSTD_VERSION


@cache
def before() -> dict[str, Any]:
    return written()


def test_every_method_is_in_the_net() -> None:
    assert {case.method for case in CASES} == set(METHODS)
    assert {case.name for case in CASES} == before()["cases"].keys()
    assert LOOSE.keys() < {*METHODS, *(case.name for case in CASES)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_method_makes_what_it_made(case: Case) -> None:
    found, expected = plays(case), before()["cases"][case.name]
    assert found["identity"] == expected["identity"]
    assert found["rounds"].keys() == expected["rounds"].keys()
    for share, arrays in expected["rounds"].items():
        assert found["rounds"][share].keys() == arrays.keys()
        for name, rounds in arrays.items():
            if name == "message.bytes" and tuple(before()["zstd"]) != tuple(ZSTD_VERSION):
                continue  # zstd may choose otherwise; what the message says is compared beside it
            got = found["rounds"][share][name]
            if tolerance := case.tolerance(name):
                np.testing.assert_allclose([r[1:] for r in got], [r[1:] for r in rounds], rtol=tolerance, err_msg=name)
            else:
                assert got == rounds, f"{name} at share {share}"


def test_net_sees_a_change() -> None:
    """A coordinate that is rounded otherwise is seen in the message, and in what follows from it."""
    case = CASES[0]
    other = plays(case._replace(options={"server_momentum": 0.5}))
    found = plays(case)
    assert other["identity"] != found["identity"]
    changed = {name for name, rounds in found["rounds"]["1.0"].items() if other["rounds"]["1.0"][name] != rounds}
    assert "server.model" in changed
    assert "message.bytes" not in changed
