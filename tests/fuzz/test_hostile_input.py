"""Hostile bytes of every kind, most with checksums and headers that hold: refused in words, or sound; never worse."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from mutations import hostile
from targets import TARGETS, check_server_unchanged

CORPUS = Path(__file__).parent / "corpus"
LONGEST = 5.0
"""Seconds of its own that no single message may take, by far: a hang, not a slow machine."""
MILLION = {
    "update": 275_000,
    "reply": 250_000,
    "broadcast": 100_000,
    "acknowledgement": 40_000,
    "client-state": 40_000,
    "checkpoint": 20_000,
    "secure-sum": 100_000,
    "flower-header": 75_000,
    "flower-array": 50_000,
    "flower-beside": 50_000,
}


def flood(name: str, count: int, seed: int) -> dict[str, float]:
    """So many hostile messages for one target; how many of them `passed` checksum and header, and how many were
    `taken`."""
    target, rng = TARGETS[name], np.random.default_rng([seed, len(name)])
    seeds, passed, taken, slowest = target.seeds(), 0, 0, 0.0
    for _ in range(count):
        message = hostile(target, seeds, rng)
        begun = time.thread_time()
        taken += target.check(message)
        slowest = max(slowest, time.thread_time() - begun)
        passed += target.holds(message)
    check_server_unchanged()
    return {"messages": count, "passed": passed, "taken": taken, "slowest": slowest}


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("name", TARGETS)
def test_sound_messages_are_taken(name: str) -> None:
    target = TARGETS[name]
    for message in target.seeds():
        whole = target.forge(message) if name.startswith("flower") else message
        assert target.holds(whole)
        assert target.check(whole) == (whole[3:4] != b"W")


@pytest.mark.parametrize("name", TARGETS)
def test_some_hostile_messages(name: str) -> None:
    found = flood(name, 300, seed=1)
    assert found["passed"] >= 150
    assert found["taken"] < 200 or name == "acknowledgement", "most damage is seen; another acknowledgement may be true"


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.bin")), ids=lambda path: path.stem)
def test_saved_messages_that_once_did_harm(path: Path) -> None:
    """What was found by fuzzing and by hand: a file each, named by its target."""
    assert not TARGETS[path.stem.partition("~")[0]].check(path.read_bytes())


@pytest.mark.slow
def test_a_million_hostile_messages() -> None:
    for name in MILLION:
        flood(name, 1_000, seed=2)
    before, total = resident(), {"messages": 0.0, "passed": 0.0, "taken": 0.0}
    for name, count in MILLION.items():
        begun = time.thread_time()
        found = flood(name, count, seed=3)
        seconds = time.thread_time() - begun
        print(name, found, f"{seconds:.0f} s, {resident() - before:,} bytes more", flush=True)
        assert found["slowest"] < LONGEST
        for key in total:
            total[key] += found[key]
    print(total)
    assert total["messages"] == 1_000_000
    assert total["passed"] >= 500_000
    assert resident() - before < 64 << 20
