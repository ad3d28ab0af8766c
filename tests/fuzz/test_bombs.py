"""A small frame that would unpack to a great deal, in the place of every compressed field there is: refused, with no
more memory than the model itself needs."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest

from fedsparq import Layout
from fedsparq.errors import WireError
from fedsparq.federate.exact import Beside
from fedsparq.methods import method
from fedsparq.payload import streams
from fedsparq.wire import decode, encode

LAYOUT = Layout.of({"a": (200, 100), "b": (3000,)})
METHODS = ("fedsparq", "float16", "fedpaq", "stc", "qsgd", "top-10", "uniform")
MODEL = 4 * 23_000
BLOCK = (1 << 1 | 131_072 << 3).to_bytes(3, "little") + b"\0"
"""128 KiB of zeros in four bytes; more blocks follow."""


def bomb(size: int) -> bytes:
    """A zstd frame of no declared size, shorter than `size`, that unpacks to 30,000 times its length: up to 8 MB."""
    start, last = b"\x28\xb5\x2f\xfd\x00" + bytes([8 << 3]), b"\x01\x00\x00"
    return start + BLOCK * min(max((size - 16) // 4, 1), 60) + last


def with_a_bomb(name: str, field: int, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, bool]:
    """An update in which a bomb was put into the n-th field that was compressed, and whether there were so many."""
    update = np.random.default_rng(1).laplace(scale=0.01, size=LAYOUT.size).astype(np.float32)
    chosen = method(name)
    payload, _ = chosen.compress(update, chosen.init(LAYOUT), np.random.default_rng(1))
    sound, turns = streams.Writer.compress, count()

    def compress(self: streams.Writer, data: streams.Bytes) -> bytes | None:
        if data.size < streams.MIN_ZSTD_INPUT:
            return sound(self, data)
        return bomb(data.size) if next(turns) == field else sound(self, data)

    with monkeypatch.context() as patched:
        patched.setattr(streams.Writer, "compress", compress)
        message = encode(payload)
    return message, next(turns) > field


def peak(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", METHODS)
def test_in_each_field_of_an_update(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops are loaded before memory is counted."""
    sound = with_a_bomb(name, -1, monkeypatch)[0]
    decode(sound, LAYOUT)
    fields = 0
    for field in count():
        message, there = with_a_bomb(name, field, monkeypatch)
        if not there:
            break
        if BLOCK * 2 in message:  # else the encoder found something shorter than this field
            fields += 1
            assert peak(lambda message=message: decode(message, LAYOUT)) < 8 * MODEL
    assert fields >= 1


def test_in_what_travels_beside_an_update_of_flower() -> None:
    packed = zlib.compress(bytes(1 << 25), 9)
    assert peak(lambda: Beside.decode(packed, 1 << 16)) < 1 << 20


def test_in_the_names_of_a_model_of_flower() -> None:
    packed = zlib.compress(bytes(200 << 20), 1)
    assert peak(lambda: Beside.decode(packed)) < 150 << 20
