"""The bytes of small messages: a change of the format, or of what ours writes, must be a conscious one."""

import re
from pathlib import Path

import numpy as np
import plain_decoder
import pytest
from golden_payloads import PAYLOADS, TWO

import fedsparq
from fedsparq import Layout, WireError

MESSAGES = {
    "nothing, float16": ("46535131006948f9f62ae3961501000100dc1e9305d7a59eb5"),
    "dense, float32": (
        "46535131006948f9f62ae3961500010000803f0000008000004040010000000000a0400000c04000010000e040000000"
        "4187c3fadbd5b36971"
    ),
    "bitmap, float16": ("46535131006948f9f62ae396150102030032007c68000000010201010078f70000ffdde284bd1c8a4714"),
    "bitmap in a frame, float16 in frames": (
        "46535131002eb2d73bfc6bc8470102d00f1328b52ffd60f4004d00001055550100ef2ac0021528b52ffd60d0065d0000"
        "20707078700100c9ff3b221528b52ffd60d0065d000020000001000100c9ff3b2271ffd1b23474e460"
    ),
    "gaps, float16": (
        "4653513100ac4539df9eed8e0701030b0d0000000000000000000000b5cf24007a7a7a7a7a7a7a7a7a7a6a0000000000"
        "000000000000aa985969036d0d6995"
    ),
    "gaps in a frame, float16 in frames": (
        "4653513100ac4539df9eed8e0701031e201428b52ffd20205d0000280000a2cf24010021c0021228b52ffd201e4d0000"
        "187a7a6a010021c0021228b52ffd201e4d0000180000aa010021c002b29ebcfcb148c678"
    ),
    "rice, float32": (
        "4653513100de08b2bb3e418f5b0004050700c45900be350000803f0000004000004040000080400000a0408636c98a7d98e1a0"
    ),
    "seeded, float32": (
        "46535131016948f9f62ae3961505000000000000800300000000050000803f0000004000050000404010f4102bb03ec4db"
    ),
    "uniform levels": ("46535131006948f9f62ae3961502050000003e0203000d020002010201000000400201000201c85f8cc5c3a96cb8"),
    "uniform levels of two bytes": (
        "46535131006948f9f62ae3961502ad026f12833a010a0000012b2cff00002c02010000803f01006b2ac0af17e7353f"
    ),
    "uniform levels in a frame": (
        "4653513100a1678d44a2dd542f02090000003f0110044110044110044110044110044110044110044110044110044110"
        "044110044110044110041728b52ffd602c006d000030000000000800010023514b115f41c8dd1ae80825"
    ),
    "codebook": ("46535131006948f9f62ae396150b0000003f000000400203002302000607000040400201000101af9b50a9d2b83243"),
    "class levels": (
        "46535131006948f9f62ae39615120202030000003f0000004002030023020008011201010000404002010001011bbf4d9487bad66d"
    ),
    "low rank": (
        "46535131006948f9f62ae396150e010000803f000000bf0000004000000000000040400100010000803e00008040ddf944ff9457f50c"
    ),
    "sketch": (
        "46535131006948f9f62ae3961516030000000001000003020000803f0000004000004040000080400000a0400000e0400100010000803f00000040fe1dd93d4e9d80ad"
    ),
    "cosine blocks": (
        "46535131006948f9f62ae396151a020000030000000000c0400000c0bf011a01000100000000803f01fa193185eef3d80e"
    ),
    "buffers": ("4653513102e42b0b659f1760e90101007880000000000000003f000080bf000700000000000000851290128650bcc1"),
}
LOW_RANK_VECTOR = (
    "46535131006948f9f62ae396150e010000803f000000bf000000400000000000004040010e010000803f0000803e0000"
    "804001b5322f9a5413e577"
)
"""A vector of two as factors of three numbers, which was allowed once."""
ZSTD = bytes.fromhex("28b52ffd")


def test_every_payload_has_its_message():
    assert MESSAGES.keys() == PAYLOADS.keys()


@pytest.mark.parametrize("name", MESSAGES)
def test_the_message_is_still_read(name):
    payload, blob = PAYLOADS[name], bytes.fromhex(MESSAGES[name])
    received = fedsparq.decode(blob, payload.layout)
    assert received.dense().tobytes() == payload.dense().tobytes()
    np.testing.assert_array_equal(received.indices, payload.indices)
    assert [type(v) for v in received.values] == [type(v) for v in payload.values]


@pytest.mark.parametrize("name", MESSAGES)
def test_the_message_is_still_written(name):
    """zstd's own choices may change with its version; all other bytes may not."""
    blob = fedsparq.encode(PAYLOADS[name])
    if ZSTD not in blob:
        assert blob.hex() == MESSAGES[name]
    else:
        assert blob[:13].hex() == MESSAGES[name][:26]
        assert len(blob) <= len(MESSAGES[name]) // 2 + 8


@pytest.mark.parametrize("name", MESSAGES)
def test_a_decoder_written_from_the_format_reads_the_same(name):
    payload = PAYLOADS[name]
    tensors = [(t.name, t.shape, t.dtype, t.role) for t in payload.layout.tensors]
    dense, buffers, counters = plain_decoder.decode(bytes.fromhex(MESSAGES[name]), tensors)
    assert np.array(dense, np.float32).tobytes() == payload.dense().tobytes()
    if payload.buffers is not None:
        assert list(buffers) == payload.buffers.statistics.tolist()
        assert list(counters) == payload.buffers.counters.tolist()


@pytest.mark.parametrize("name", fedsparq.METHODS)
def test_that_decoder_reads_every_method(name):
    layout = Layout.of({"w": (40, 30), "none": (0,), "b": (40,)})
    tensors = [(t.name, t.shape, t.dtype, t.role) for t in layout.tensors]
    method = fedsparq.method(name)
    state = method.init(layout)
    for r in range(3):
        update = np.random.default_rng(r).laplace(scale=1e-3, size=layout.size).astype(np.float32)
        payload, state = method.compress(update, state, np.random.default_rng(r))
        dense, _, _ = plain_decoder.decode(fedsparq.encode(payload), tensors)
        assert np.array(dense, np.float32).tobytes() == payload.dense().tobytes()


def test_factors_longer_than_their_layer_are_refused():
    with pytest.raises(WireError, match=" 1 x 2"):
        fedsparq.decode(bytes.fromhex(LOW_RANK_VECTOR), Layout.of(TWO))


def test_the_digest_of_the_format():
    assert Layout.of(TWO).digest == 0x1596E32AF6F94869


def test_the_examples_of_the_format():
    text = Path(fedsparq.wire.__file__).with_name("FORMAT.md").read_text().split("## Two messages")[1]
    rows = re.findall(r"^    ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  |$)", text, re.MULTILINE)
    first, second = (bytes.fromhex("46 53 51 31" + part) for part in " ".join(rows).split("46 53 51 31")[1:])
    layout = Layout.of(TWO)
    assert fedsparq.decode(first, layout).dense().tolist() == [0, 1.5, 0, 0, -0.25, 0, 1, 2]
    assert second.hex() == MESSAGES["seeded, float32"]
