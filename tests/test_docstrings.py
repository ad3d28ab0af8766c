"""The examples in docstrings run: they are the examples of the API reference."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

from pages import ROOT

pytest.importorskip("torch")
pytest.importorskip("flwr")

SOURCE = ROOT / "src"
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_of_a_module_run(module: str) -> None:
    found = doctest.testmod(import_module(module))
    assert found.attempted
    assert not found.failed
