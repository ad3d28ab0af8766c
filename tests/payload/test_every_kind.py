"""What holds for every kind of value: it can be scaled, counted as papers do, and decoded with bounded work."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from every_kind import LAYOUT, RAW_BYTES, payload_of

import fedsparq
from fedsparq import Layout, WireError
from fedsparq.federate.client import Client, Trained
from fedsparq.federate.messages import Acknowledgement, Broadcast, Reply
from fedsparq.federate.model import Model
from fedsparq.federate.store import MemoryStore
from fedsparq.lab.paper import message_bytes
from fedsparq.methods import method, resolver
from fedsparq.payload import ClassLevels, values

FORMAT = Path(fedsparq.wire.__file__).with_name("FORMAT.md")


def test_every_kind_is_here() -> None:
    assert {type(kind) for kind, _ in RAW_BYTES.values()} == {values.value_kind(code, "w") for code in codes()}


def codes() -> set[int]:
    """The codes in FORMAT.md's table of layers, a codebook's without its size."""
    rows = FORMAT.read_text().split("### Header")[1].split("All other codes")[0].splitlines()
    first = [row.split("|")[1].strip() for row in rows if row.startswith("| ")]
    return {int(code.split()[0]) for code in first if code[0].isdigit() and not code.startswith("64")}


@pytest.mark.parametrize("name", RAW_BYTES)
def test_every_kind_travels(name: str) -> None:
    payload = payload_of(name)
    received = fedsparq.decode(fedsparq.encode(payload), LAYOUT)
    assert type(received.values[0]) is type(payload.values[0])
    assert received.dense().tobytes() == payload.dense().tobytes()


@pytest.mark.parametrize("name", RAW_BYTES)
@pytest.mark.parametrize("factor", [0.7, 0.01])
def test_scaled_payload_stays_of_its_kind_and_takes_no_more_bytes(name: str, factor: float) -> None:
    payload = payload_of(name)
    scaled = payload.scaled(np.float32(factor))
    assert type(scaled.values[0]) is type(payload.values[0])
    tolerance = factor * float(np.abs(payload.dense()).max()) / 100
    np.testing.assert_allclose(scaled.dense(), np.float32(factor) * payload.dense(), rtol=0.01, atol=tolerance)
    if name != "float16":  # its bytes are coded by how often they occur, which may be otherwise
        assert len(fedsparq.encode(scaled)) <= len(fedsparq.encode(payload))


@pytest.mark.parametrize("name", RAW_BYTES)
def test_paper_bytes_of_every_kind(name: str) -> None:
    payload, expected = payload_of(name), RAW_BYTES[name][1]
    listed = 4 * payload.kept if payload.kept < LAYOUT.size else 0
    assert message_bytes(payload) == expected + listed


def test_reply_clipped_in_norm_stays_within_its_budget() -> None:
    """A client whose update is too long sends a part of it: no longer a message than it may."""
    layout, budget = Layout.of({"w": (100, 100)}), 1500
    update = np.random.default_rng(1).laplace(size=layout.size).astype(np.float32)
    asked = method("fedsparq-adaptive", budget=f"{budget} B", rounding="nearest").identity
    assert asked is not None
    client = Client(0, layout, lambda *_: Trained(update, 10), MemoryStore(), resolver())
    model = Model(np.zeros(layout.size, np.float32)).encode(layout)
    for limit, clipped in ((np.inf, False), (5.0, True)):
        broadcast = Broadcast(1 + clipped, Acknowledgement(), layout.digest, asked, 0, False, (model,), limit)
        answer = client.answer(broadcast.encode())
        assert answer.message is not None
        blob = Reply.decode(answer.message).blob
        assert (fedsparq.decode(blob, layout).norm <= 5) == clipped
        assert len(blob) <= budget


def low_rank_message(rows: int, columns: int, rank: int) -> tuple[bytes, Layout]:
    layout = Layout.of({"w": (rows, columns)})
    factors = np.zeros(rank * (rows + columns), "<f4").tobytes()
    varint = bytes([rank]) if rank < 128 else bytes([rank & 127 | 128, rank >> 7])
    chunks = -(-rows * columns // 2**20)
    body = b"FSQ1\0" + layout.digest.to_bytes(8, "little") + b"\x0e" + varint + factors + b"\x01" * chunks
    return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body)), layout


@pytest.mark.parametrize(("rows", "columns", "rank"), [(300, 300, 128), (40, 40, 20), (1, 9, 0)])
def test_low_rank_that_pays_is_read(rows: int, columns: int, rank: int) -> None:
    message, layout = low_rank_message(rows, columns, rank)
    assert not fedsparq.decode(message, layout).dense().any()


@pytest.mark.parametrize(("rows", "columns", "rank"), [(300, 300, 129), (40, 40, 21), (1, 9, 1)])
def test_low_rank_that_is_more_work_than_its_layer_pays_for_is_refused(rows: int, columns: int, rank: int) -> None:
    message, layout = low_rank_message(rows, columns, rank)
    with pytest.raises(WireError, match=f" {rank} "):
        fedsparq.decode(message, layout)


def elements_made(values: Any) -> float:
    """The most numbers of float32 that decoding held at once."""
    values.decode()  # loops are loaded before memory is counted
    again = replace(values)
    tracemalloc.start()
    try:
        again.decode()
        return tracemalloc.get_traced_memory()[1] / 4
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", RAW_BYTES)
def test_decoding_holds_a_few_times_the_layer(name: str) -> None:
    assert elements_made(RAW_BYTES[name][0]) < 8 * LAYOUT.size + 4096


def test_decoding_a_few_class_levels_does_not_list_all_that_there_could_be() -> None:
    assert elements_made(ClassLevels(np.float32([1.0]), (32767,), np.int16([5, -9]))) < 4096
