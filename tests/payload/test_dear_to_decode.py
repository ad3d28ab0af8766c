"""What is cheap to send and dear to decode: refused, or decoded with work and memory bounded by the model's size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from every_kind import LAYOUT, RAW_BYTES, payload_of

import fedsparq
from fedsparq import Layout, Payload
from fedsparq.errors import WireError
from fedsparq.federate.exact import NamedModel
from fedsparq.federate.ledger import Ledger, Ticket
from fedsparq.federate.messages import Reply
from fedsparq.federate.model import Model
from fedsparq.federate.serialized import to_array
from fedsparq.federate.server import Server
from fedsparq.federate.validation import Validation
from fedsparq.methods import method
from fedsparq.payload import Dense, LowRank

ALWAYS = {"float32", "class levels"}
"""What is clipped in norm may become one of these."""
SENDS = {
    "fedsparq": {"float16"},
    "fedpaq": {"uniform levels", "uniform levels, short"},
    "powersgd": {"low rank"},
    "fedsparq-adaptive": {"uniform levels", "uniform levels, short", "codebook", "codebook, short"},
}


def reply(name: str, kind: str) -> bytes:
    chosen = method(name).identity
    assert chosen is not None
    return Reply(1, chosen.digest, 10, fedsparq.encode(payload_of(kind))).encode()


@pytest.mark.parametrize("name", SENDS)
def test_kinds_that_a_method_never_sends_are_refused(name: str) -> None:
    taken = set()
    for kind in RAW_BYTES:
        server = Server(LAYOUT, method(name), Model(np.zeros(LAYOUT.size, np.float32)))
        server.open_round([0])
        if server.receive(0, reply(name, kind)).taken:
            taken.add(kind)
    assert taken == SENDS[name] | ALWAYS


@pytest.mark.parametrize("name", SENDS)
def test_kinds_that_a_method_never_sends_are_refused_where_another_aggregates(name: str) -> None:
    model, taken = NamedModel.of({"w": to_array(np.zeros((48, 64), np.float32))}), set()
    for kind in RAW_BYTES:
        try:
            Ledger(method(name)).receive(Ticket(0, 1, model), reply(name, kind))
            taken.add(kind)
        except WireError:
            pass
    assert taken == SENDS[name] | ALWAYS


def held(side: int, replies: int) -> int:
    """The memory that an open round has for so many replies, each of some kilobytes, to a model of side x side."""
    layout, chosen, size = Layout.of({"w": (side, side)}), method("powersgd"), side * side
    assert chosen.identity is not None
    factors = LowRank(np.ones((side, 1), np.float32), np.ones((side, 1), np.float32))
    blob = fedsparq.encode(Payload(layout, Dense(size), (factors,)))
    sent = Reply(1, chosen.identity.digest, 10, blob).encode()
    assert len(sent) < 10 * side
    server = Server(layout, chosen, Model(np.zeros(size, np.float32)), validation=Validation(norm_limit="3x median"))
    server.open_round(range(replies))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for client in range(replies):
            assert server.receive(client, bytes(bytearray(sent))).taken
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        assert len(server.close_round().counted) == replies


def test_a_round_that_is_judged_at_its_end_holds_bytes() -> None:
    assert held(1024, 20) < 1 << 20


def test_the_work_of_decoding_is_bounded_by_the_size_of_the_model() -> None:
    """Counted, with every loop as Python: lines a coordinate, about two for each operation that a kind may take."""
    program = Path(__file__).with_name("counted_work.py")
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True, env=environment)
    found = json.loads(done.stdout)
    assert found.keys() > RAW_BYTES.keys()
    assert max(found.values()) < 4 * 128, found
