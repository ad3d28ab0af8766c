"""Messages come back as they went, and nothing that is not exactly a message is taken for one."""

from dataclasses import replace

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from small_federation import FEDAVG, FEDSPARQ, LAYOUT, identity, reply, server, vector

from fedsparq.errors import OptionError, WireError
from fedsparq.federate.exact import ArraySpec, Beside
from fedsparq.federate.messages import Acknowledgement, Broadcast, FullWanted, Reply, Seen, decode_answer
from fedsparq.federate.serialized import to_array
from fedsparq.method import Identity
from fedsparq.methods import METHODS, method, resolver
from fedsparq.payload import Payload
from fedsparq.payload.frame import KINDS, frame_kind, read_frame
from fedsparq.payload.support import RoundPlan
from fedsparq.wire import decode, encode

STC = identity(method("stc", fraction=0.1))
BROADCAST = Broadcast(7, Acknowledgement(5, 2**64 - 1, 0.75), LAYOUT.digest, STC, 5, True, (b"six", b""), 2.5)
PLAIN = identity(FEDAVG)


def test_broadcast_comes_back() -> None:
    assert Broadcast.decode(BROADCAST.encode()) == BROADCAST


@given(
    number=st.integers(1, 2**32 - 1),
    last=st.none() | st.builds(Acknowledgement, st.just(0), st.integers(0, 2**64 - 1), st.floats(1e-300, 1)),
    hold=st.booleans(),
    blob=st.binary(max_size=300),
    limit=st.floats(0, width=32),
)
def test_any_broadcast_comes_back(
    number: int, last: Acknowledgement | None, hold: bool, blob: bytes, limit: float
) -> None:
    broadcast = Broadcast(number, last, LAYOUT.digest, identity(FEDSPARQ), 0, hold, (blob,), limit)
    assert Broadcast.decode(broadcast.encode()) == broadcast


def test_answers_come_back() -> None:
    answer = Reply(3, identity(FEDSPARQ).digest, 600, b"blob")
    assert decode_answer(answer.encode()) == answer
    assert decode_answer(FullWanted(3).encode()) == FullWanted(3)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods_travel_by_name_version_and_every_option(name: str) -> None:
    made = method(name)
    travelled = Identity.decode(identity(made).encode())
    assert travelled == identity(made)
    assert travelled.version
    assert dict(travelled.options) == dict(made.options)
    assert resolver()(travelled) == made


def test_digest_tells_options_apart() -> None:
    digests = {identity(method("fedsparq", beta=beta)).digest for beta in (0.5, 0.9, 0.99)}
    assert len(digests) == 3
    assert identity(method("fedsparq", beta=0.9)).digest == identity(FEDSPARQ).digest


def read_answer(message: bytes) -> None:
    """As a server does."""
    answer = decode_answer(message)
    if isinstance(answer, Reply):
        decode(answer.blob, LAYOUT)


def read_broadcast(message: bytes) -> None:
    """As a client does."""
    for blob in Broadcast.decode(message).blobs:
        decode(blob, LAYOUT)


CHANGES = tuple(encode(Payload.full(LAYOUT, vector(value))) for value in (1, 2))
NAMED = Beside({"counter": to_array(np.arange(3))}, (("a", "b"),), ArraySpec((("counter", "int64", (3,)),)))
MESSAGES = {
    "broadcast": (replace(BROADCAST, blobs=CHANGES).encode(), read_broadcast),
    "broadcast with names and a plan": (
        replace(BROADCAST, blobs=CHANGES, beside=NAMED, plan=RoundPlan(clip=2.0), federation="f", session=9).encode(),
        read_broadcast,
    ),
    "seen": (Seen(3, 4).encode(), Seen.decode),
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


@given(st.binary(max_size=200), st.sampled_from([b"", b"FSQB\x04", b"FSQR\x04", b"FSQW\x04"]))
def test_arbitrary_bytes_are_refused(data: bytes, magic: bytes) -> None:
    for read in (Broadcast.decode, read_answer):
        with pytest.raises(WireError):
            read(magic + data)


@pytest.mark.parametrize(
    "wrong",
    [
        Broadcast(3, Acknowledgement(3, 1), 0, PLAIN, 0, False, (b"",)),
        Broadcast(3, None, 0, PLAIN, 3, False, (b"",)),
        Broadcast(3, None, 0, PLAIN, 1, True, ()),
        Broadcast(3, None, 0, PLAIN, 0, False, (b"", b"")),
        Broadcast(3, None, 0, PLAIN, 0, False, (b"",), float("nan")),
        Broadcast(3, Acknowledgement(1, 1, 0.0), 0, PLAIN, 0, False, (b"",)),
        Broadcast(3, Acknowledgement(1, 1, -0.5), 0, PLAIN, 0, False, (b"",)),
        Broadcast(3, Acknowledgement(1, 1, 1.5), 0, PLAIN, 0, False, (b"",)),
        Broadcast(3, Acknowledgement(1, 1, float("nan")), 0, PLAIN, 0, False, (b"",)),
    ],
    ids=[
        "counts the future",
        "base is not past",
        "too few changes",
        "two models",
        "no norm limit",
        "a share of nothing",
        "less than nothing",
        "more than all",
        "no share",
    ],
)
def test_impossible_broadcasts_are_refused(wrong: Broadcast) -> None:
    with pytest.raises(WireError):
        Broadcast.decode(wrong.encode())


def test_broadcast_of_another_version_is_said_to_be() -> None:
    """Its other parts may mean anything; the version comes first."""
    data = bytearray(BROADCAST.encode()[:-4])
    data[4] = 9
    message = bytes(data) + xxhash.xxh3_64_digest(bytes(data))[:3:-1]
    with pytest.raises(WireError, match=r"version 9, .* version 4"):
        Broadcast.decode(message)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"3",
        b"[]",
        b"null",
        b'["fedsparq"]',
        b'["fedsparq",{}]',
        b'["fedsparq",1,{}]',
        b'["fedsparq","1",[]]',
        b'[null,"1",{}]',
        b"\xff\xfe",
        b"[" * 4000,
    ],
)
def test_method_that_cannot_be_read_is_refused(text: bytes) -> None:
    with pytest.raises(WireError, match="cannot be read"):
        Identity.decode(text)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [("none", {}, "'none'"), ("fedsparq", {"beta": 7}, "beta=7"), ("fedsparq", {"name": "x"}, "no option 'name'")],
)
def test_method_that_cannot_be_had_is_refused(name: str, options: dict[str, object], words: str) -> None:
    version = identity(FEDSPARQ).version
    with pytest.raises(WireError, match=words):
        resolver()(Identity(name, version, options))


def test_golden_broadcast() -> None:
    """The bytes of a broadcast: a frame of kind B, with the method as text, its every option and version."""
    last = Acknowledgement(6, 0x0123456789ABCDEF, 0.75)
    method_text = Identity("example", "3", {"b": 2, "a": 0.5, "c": "layer"})
    broadcast = Broadcast(7, last, 0xFEDCBA9876543210, method_text, 5, True, (b"six", b"seven"), 2.5)
    text = b'["example","3",{"a":0.5,"b":2,"c":"layer"}]'
    numbers = "0000000000000000 0000000000000000 07000000 00000000 05000000 0000000000000000 1032547698badcfe"
    numbers += "0000000000000440 01 06000000 efcdab8967452301 000000000000e83f"
    metadata = bytes.fromhex(numbers) + bytes([len(text)]) + text + bytes(3)
    head = b"FSQB" + bytes([4, 2]) + len(metadata).to_bytes(2, "little") + metadata + b"\x03"
    check = xxhash.xxh3_64_digest(head + b"sixseven")[:3:-1]
    assert broadcast.encode().hex() == (head + check + b"sixseven").hex()


def test_golden_broadcast_of_the_papers_method() -> None:
    """A change of a default or of the version changes what machines tell each other: then these bytes change too."""
    text = (
        b'["fedsparq","1",{"beta":0.9,"multiplier":1.0,"proximal_mu":0.01,"residual":"full","rounding":"nearest",'
        b'"scope":"layer","server_momentum":0.01,"start":"debiased"}]'
    )
    assert identity(FEDSPARQ).encode() == text
    sender = server(FEDSPARQ)
    sender.open_round([0])
    assert text in sender.broadcast(0)


def test_golden_reply() -> None:
    answer = Reply(7, Identity("example", "3", {"a": 0.5}).digest, 600, b"blob")
    assert answer.encode().hex() == "46535152 04 01 0c00 07000000 b4180e58 58020000 6c59de52 626c6f62".replace(" ", "")


def test_options_that_no_client_would_read_are_not_sent() -> None:
    long = Identity("mine", "1", {"words": "x" * 5000})
    with pytest.raises(OptionError, match=r"the options of 'mine' take 5,\d\d\d bytes, more than 4096"):
        Broadcast(1, None, 0, long, 0, False, (b"",)).encode()


def test_overhead_of_a_reply_is_24_bytes() -> None:
    message = reply(vector(1))
    assert len(message) - len(decode_answer(message).blob) == 24  # type: ignore[union-attr]


def test_broadcast_of_a_server_can_be_read() -> None:
    sender = server()
    sender.open_round([4])
    request = Broadcast.decode(sender.broadcast(4))
    assert (request.round, request.acknowledged, request.base, request.hold) == (1, Acknowledgement(), 0, False)


def test_broadcasts_that_name_sets_of_replies_come_back_whole() -> None:
    last = Acknowledgement(5, 99, 0.5)
    plain = Broadcast(9, last, 7, Identity("fedsparq"), 0, True, (b"model",))
    sets = replace(plain, also_counted=(Acknowledgement(3, 12), Acknowledgement(4, 13, 0.25)), pending=(6, 8))
    assert Broadcast.decode(sets.encode()) == sets
    assert Broadcast.decode(plain.encode()) == plain
    for cut in range(5, len(sets.encode()) - len(b"model")):
        with pytest.raises(WireError):
            Broadcast.decode(sets.encode()[:cut])


def test_streams_payloads_and_foreign_bytes_are_no_frames() -> None:
    for message in (b"FSQS\x01" + bytes(20), b"FSQ1\x04" + bytes(20), b"", b"FSQ", b"FSQB\x03" + bytes(20)):
        assert frame_kind(message) == ""
        with pytest.raises(WireError):
            read_frame(message, *KINDS)


@pytest.mark.parametrize("name", ["x/../..", "../f", "", "a" * 65, "a b", "\x00"])
def test_a_federation_that_is_no_name_is_refused(name: str) -> None:
    message = replace(BROADCAST, federation=name or "/").encode()
    with pytest.raises(WireError):
        Broadcast.decode(message)
