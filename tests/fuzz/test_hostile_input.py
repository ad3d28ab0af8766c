"""Hostile bytes of every kind, most with checksums and headers that hold: refused in words, or sound; never worse."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

HERE = Path(__file__).parent
for folder in (HERE.parent, HERE.parent / "flower"):
    sys.path.append(str(folder))

from targets import TARGETS  # noqa: E402

CORPUS = HERE / "corpus"
SOURCE = HERE.parents[1] / "src" / "fedsparq"
SHORT, LONG = 200, 100_000
SLOW = {"flower-answer": 40, "flower-checkpoint": 40, "secure-conversation": 40, "masked-request": 100}
"""Those that play a round for each message: as many in a short run."""
ANY = ("flower-answer", "deploy-answer", "secure-conversation")
"""Whose seeds choose what is said."""
MOSTLY_TRUE = ("acknowledgement", *ANY)
"""Where much of what is changed is as true as it was."""


def flood(counts: dict[str, int], seed: int, folder: Path) -> None:
    """So many messages for each target, in a process of its own with limits on time and memory."""
    asked = [f"{name}={count}" for name, count in counts.items()]
    command = [sys.executable, str(HERE / "flood.py"), *asked, str(seed), str(folder / "message")]
    paths = [str(HERE.parent), str(HERE.parent / "flower"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    print(done.stdout)
    last = (folder / "message").read_bytes().hex()[:4000] if (folder / "message").exists() else ""
    assert done.returncode == 0, f"{done.stderr[-2000:]} ended by {last}"
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["target"] for each in found] == list(counts)
    for each in found:
        name, count = each["target"], each["messages"]
        assert not each["errors"], each
        assert each["passed"] >= count / 2
        assert each.get("taken", 0) < count * 2 / 3 or name in MOSTLY_TRUE, "most damage is seen"


@pytest.mark.parametrize("name", TARGETS)
def test_sound_messages_are_taken(name: str) -> None:
    target = TARGETS[name]
    for message in target.seeds():
        whole = target.forge(message) if name.startswith("flower") and not target.is_file else message
        assert target.holds(whole)
        assert target.check(whole) == (whole[3:4] != b"W") or name in ANY


def test_some_hostile_messages_for_every_reader(tmp_path: Path) -> None:
    flood({name: SLOW.get(name, SHORT) for name in TARGETS}, 1, tmp_path)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.bin")), ids=lambda path: path.stem)
def test_saved_messages_that_once_did_harm(path: Path) -> None:
    """What was found by fuzzing and by hand: a file each, named by its target."""
    assert not TARGETS[path.stem.partition("~")[0]].check(path.read_bytes())


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", TARGETS)
def test_a_hundred_thousand_hostile_messages(name: str, tmp_path: Path) -> None:
    flood({name: LONG}, 3, tmp_path)


FOREIGN = {"bytes", "bytearray", "memoryview", "Reader", "RecordDict", "ConfigRecord", "MetricRecord"}
"""Types of what comes from outside. Whatever takes one of them reads it, or is given its own."""
ROOMS = (
    "archive.py",
    "federate/",
    "flower/",
    "large/",
    "method.py",
    "payload/",
    "secure/",
    "wire/",
    "lab/engines/flower.py",
)
OWN = {
    "federate/masked.py _answers",
    "federate/masked.py _train",
    "flower/grid.py create_message",
    "flower/stores.py _put",
    "large/container.py _write",
    "large/container.py add",
    "large/residual.py _header",
    "payload/payload.py with_message",
    "secure/client.py once",
    "secure/shamir.py share",
    "wire/inspect.py raw",
    "wire/inspect.py stream",
}
"""Functions that are only given what this side has made."""


def readers() -> set[str]:
    """Every function in the code that takes what may come from outside: file and line."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).as_posix()
        if not room.startswith(ROOMS):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                kinds = [each.annotation for each in (*node.args.args, *node.args.kwonlyargs) if each.annotation]
                names = {each.id for kind in kinds for each in ast.walk(kind) if isinstance(each, ast.Name)}
                marks = [
                    each.id for each in ast.walk(ast.Module(node.decorator_list, [])) if isinstance(each, ast.Name)
                ]
                if names & FOREIGN and not {"abstractmethod", "lru_cache"} & set(marks):
                    found.add(f"{room} {node.name}")
    return found


def test_the_list_has_every_reader_of_foreign_bytes() -> None:
    """Each is called by some target with sound bytes, or is known to be given only what this side has made."""
    called = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and "fedsparq" in frame.f_code.co_filename:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(SOURCE):
                called.add(f"{path.relative_to(SOURCE).as_posix()} {frame.f_code.co_name}")

    sound = {name: target.seeds() for name, target in TARGETS.items()}
    sys.setprofile(profile)
    try:
        for name, target in TARGETS.items():
            for message in sound[name]:
                target.check(target.forge(message) if name == "flower-beside" else message)
    finally:
        sys.setprofile(None)
    assert sorted(readers() - called - OWN) == []
    assert sorted(OWN - readers()) == []
