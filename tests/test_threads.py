"""Several threads give what one gives, also when something is wrong, and share out the work of one call only."""

from __future__ import annotations

import numpy as np
import pytest

import fedsparq
from fedsparq import Layout, threads
from fedsparq.errors import OptionError

LAYOUT = Layout.of({"a": (1100, 1000), "none": (0,), "c": (1200, 900), "e": (2, 1_100_001)})


@pytest.fixture(scope="module")
def update() -> np.ndarray:
    return np.random.default_rng(0).laplace(scale=1e-3, size=LAYOUT.size).astype(np.float32)


@pytest.mark.parametrize("method", ["fedsparq", "fedsparq-adaptive", "top-10", "float16", "random-10", "eden"])
def test_threads_change_nothing(method: str, update: np.ndarray) -> None:
    chosen, found = fedsparq.method(method), []
    for count in (1, 2, 5):
        state, blobs = chosen.init(LAYOUT), []
        rng = np.random.default_rng(1)
        for _ in range(2):
            payload, state = chosen.compress(update, state, rng)
            blobs.append(fedsparq.encode(payload, threads=count))
            read = fedsparq.decode(blobs[-1], LAYOUT)
            total = update.copy()
            read.add_to(total, 0.3, threads=count)
        arrays = [array.tobytes() for _, array in sorted(state.arrays().items())]
        found.append((blobs, total.tobytes(), read.dense().tobytes(), arrays))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("share", [0.9, 0.2, 0.02])
def test_threads_write_every_index_coding_alike(share: float, update: np.ndarray) -> None:
    indices = np.flatnonzero(np.random.default_rng(2).random(LAYOUT.size) < share)
    payload = fedsparq.Payload.sparse(LAYOUT, indices, update[indices])
    blob = fedsparq.encode(payload, threads=3)
    assert blob == fedsparq.encode(payload, threads=1)
    received = fedsparq.decode(blob, LAYOUT)
    assert received.indices.tobytes() == payload.indices.tobytes()
    assert received.dense().tobytes() == payload.dense().tobytes()


def test_work_that_is_shared_out_is_not_shared_out_again() -> None:
    assert list(threads.imap(lambda _: threads.resolve_threads(7), range(3), 2)) == [1, 1, 1]
    assert threads.resolve_threads(7) == 7
    assert threads.resolve_threads(7, coordinates=1000) == 1


def test_how_many_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("FEDSPARQ_THREADS", raising=False)
    assert threads.available_threads() == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.available_threads() == 3
    monkeypatch.setenv("FEDSPARQ_THREADS", "1")
    assert threads.available_threads() == 1
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(OptionError, match="threads"):
            threads.resolve_threads(wrong)


def test_an_error_ends_what_was_begun() -> None:
    done = []

    def work(n: int) -> int:
        if n == 1:
            raise ValueError("one")
        done.append(n)
        return n

    with pytest.raises(ValueError, match="one"):
        list(threads.imap(work, range(50), 2))
    ended = len(done)
    assert ended < 50
    assert list(threads.imap(lambda n: n, range(3), 2)) == [0, 1, 2]
    assert len(done) == ended
