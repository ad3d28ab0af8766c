"""The example in `examples/flower-pytorch`: two lines apart, and both learn."""

import difflib
import runpy
import sys
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from inprocess_grid import InProcessGrid

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-pytorch"


def test_before_and_after_are_two_lines_and_an_import_apart():
    before, after = ((EXAMPLE / name / "app.py").read_text().splitlines() for name in ("before", "after"))
    changed = [line for line in difflib.ndiff(before, after) if line[:2] == "+ " and line[2:].strip()]
    assert len(changed) == 3
    assert changed[0] == "+ from fedsparq.flower import Compressed, compress"
    assert (EXAMPLE / "before" / "task.py").read_bytes() == (EXAMPLE / "after" / "task.py").read_bytes()


def play(name: str, monkeypatch: pytest.MonkeyPatch, rounds: int) -> tuple[float, InProcessGrid]:
    monkeypatch.syspath_prepend(str(EXAMPLE / name))
    sys.modules.pop("task", None)
    module = runpy.run_path(str(EXAMPLE / name / "app.py"))
    grid, seen = InProcessGrid([module["app"]] * 3), []
    measured = module["accuracy"]
    module["main"].__globals__["accuracy"] = lambda state: seen.append(measured(state)) or seen[-1]
    module["server"](grid, Context(1, 1, {}, RecordDict(), {"rounds": rounds}))
    return seen[-1], grid


def test_both_learn_and_the_second_sends_a_fraction(monkeypatch):
    plain, dense = play("before", monkeypatch, 3)
    packed, small = play("after", monkeypatch, 3)
    assert plain > 80
    assert packed > plain - 5
    assert sum(small.up.values()) < sum(dense.up.values()) / 4
