"""Messages come back as they went, and nothing that is not exactly a message is taken for one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_federation import FEDAVG, FEDSPARQ, LAYOUT, reply, server, vector

from fedsparq.compress.method import METHODS, method
from fedsparq.errors import WireError
from fedsparq.federate.messages import (
    Broadcast,
    FullWanted,
    Receipt,
    Reply,
    decode_answer,
    describe,
    method_digest,
    method_of,
)
from fedsparq.wire.frame import decode

BROADCAST = Broadcast(7, Receipt(5, 2**64 - 1), LAYOUT.digest, method("stc", fraction=0.1), 5, True, (b"six", b""), 2.5)


def test_broadcast_comes_back() -> None:
    assert Broadcast.decode(BROADCAST.encode()) == BROADCAST


@given(
    number=st.integers(1, 2**32 - 1),
    told=st.none() | st.builds(Receipt, st.just(0), st.integers(0, 2**64 - 1)),
    hold=st.booleans(),
    blob=st.binary(max_size=300),
    limit=st.floats(0, width=32),
)
def test_any_broadcast_comes_back(number: int, told: Receipt | None, hold: bool, blob: bytes, limit: float) -> None:
    broadcast = Broadcast(number, told, LAYOUT.digest, FEDSPARQ, 0, hold, (blob,), limit)
    assert Broadcast.decode(broadcast.encode()) == broadcast


def test_answers_come_back() -> None:
    answer = Reply(3, method_digest(FEDSPARQ), 600, b"blob")
    assert decode_answer(answer.encode()) == answer
    assert decode_answer(FullWanted(3).encode()) == FullWanted(3)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods_travel_by_name_and_unusual_options(name: str) -> None:
    assert method_of(describe(method(name))) == method(name)


def test_digest_tells_options_apart() -> None:
    digests = {method_digest(method("fedsparq", beta=beta)) for beta in (0.5, 0.9, 0.99)}
    assert len(digests) == 3
    assert method_digest(method("fedsparq", beta=0.9)) == method_digest(FEDSPARQ)


def read_answer(message: bytes) -> None:
    """As a server does."""
    answer = decode_answer(message)
    if isinstance(answer, Reply):
        decode(answer.blob, LAYOUT)


MESSAGES = {
    "broadcast": (BROADCAST.encode(), Broadcast.decode),
    "reply": (reply(np.arange(LAYOUT.size, dtype=np.float32)), read_answer),
    "request": (FullWanted(3).encode(), read_answer),
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_every_damaged_byte_is_noticed(kind: str) -> None:
    message, read = MESSAGES[kind]
    read(message)
    for place in range(len(message)):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(message)
            damaged[place] ^= change
            with pytest.raises(WireError):
                read(bytes(damaged))


@pytest.mark.parametrize("kind", MESSAGES)
def test_every_cut_and_every_tail_is_noticed(kind: str) -> None:
    message, read = MESSAGES[kind]
    for length in range(len(message)):
        with pytest.raises(WireError):
            read(message[:length])
    for tail in (b"\0", message):
        with pytest.raises(WireError):
            read(message + tail)


@given(st.binary(max_size=200), st.sampled_from([b"", b"FSQB", b"FSQR", b"FSQW"]))
def test_arbitrary_bytes_are_refused(data: bytes, magic: bytes) -> None:
    for read in (Broadcast.decode, read_answer):
        with pytest.raises(WireError):
            read(magic + data)


@pytest.mark.parametrize(
    "wrong",
    [
        Broadcast(3, Receipt(3, 1), 0, FEDAVG, 0, False, (b"",)),
        Broadcast(3, None, 0, FEDAVG, 3, False, (b"",)),
        Broadcast(3, None, 0, FEDAVG, 1, False, (b"",)),
        Broadcast(3, None, 0, FEDAVG, 0, False, (b"", b"")),
        Broadcast(3, None, 0, FEDAVG, 0, False, (b"",), float("nan")),
    ],
    ids=["counts the future", "base is not past", "too few changes", "two models", "no norm limit"],
)
def test_impossible_broadcasts_are_refused(wrong: Broadcast) -> None:
    with pytest.raises(WireError):
        Broadcast.decode(wrong.encode())


@pytest.mark.parametrize(
    "text", [b"", b"3", b"[]", b'["fedsparq"]', b'["none",{}]', b'["fedsparq",{"beta":7}]', b"[" * 4000]
)
def test_method_that_cannot_be_had_is_refused(text: bytes) -> None:
    with pytest.raises(WireError):
        method_of(text)


def test_overhead_of_a_reply_is_24_bytes() -> None:
    message = reply(vector(1))
    assert len(message) - len(decode_answer(message).blob) == 24  # type: ignore[union-attr]


def test_broadcast_of_a_server_can_be_read() -> None:
    sender = server()
    sender.open_round([4])
    told = Broadcast.decode(sender.broadcast(4))
    assert (told.round, told.acknowledged, told.base, told.hold) == (1, Receipt(), 0, False)
