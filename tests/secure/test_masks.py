"""Masks: known answers of ChaCha20, numbers modulo a power of two, and their packing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from fedsparq.errors import WireError
from fedsparq.secure.masks import lifted, mask, pack, unpack, wrapped

RFC_8439 = (
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
)
"""RFC 8439, appendix A.1, test vector 1: key, nonce and counter zero."""


@pytest.mark.parametrize(("bits", "kind"), [(32, "<u4"), (16, "<u2")])
def test_the_generator_is_chacha20(bits: int, kind: str) -> None:
    stream = np.frombuffer(bytes.fromhex(RFC_8439), kind)
    np.testing.assert_array_equal(mask(bytes(32), stream.size, bits), stream)
    np.testing.assert_array_equal(mask(bytes(32), stream.size, bits - 5), stream % 2 ** (bits - 5))


@given(st.integers(1, 32), st.data())
def test_packing_is_undone(bits: int, data: st.DataObject) -> None:
    words = np.array(data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=40)), np.uint32)
    packed = pack(words, bits)
    assert len(packed) == (len(words) * bits + 7) // 8
    number = sum(int(word) << (n * bits) for n, word in enumerate(words))
    assert int.from_bytes(packed, "little") == number
    np.testing.assert_array_equal(unpack(packed, len(words), bits), words)


@given(st.integers(2, 32), st.data())
def test_numbers_of_either_sign_come_back(bits: int, data: st.DataObject) -> None:
    half = 2 ** (bits - 1)
    levels = np.array(data.draw(st.lists(st.integers(-half, half - 1), max_size=20)), np.int64)
    np.testing.assert_array_equal(lifted(wrapped(levels, bits), bits), levels)


def test_what_is_not_exactly_right_is_refused() -> None:
    with pytest.raises(WireError, match="take 4 bytes, not 5"):
        unpack(bytes(5), 3, 9)
    with pytest.raises(WireError, match="belong to none"):
        unpack(bytes([0, 0, 0, 255]), 3, 9)


def test_masked_numbers_are_uniform() -> None:
    """Chi-square over 256 cells, for the worst numbers there are: all alike."""
    words = (wrapped(np.full(65536, 100), 8) + mask(bytes(range(32)), 65536, 8)) & np.uint32(255)
    counts = np.bincount(words, minlength=256)
    statistic = float(((counts - 256) ** 2 / 256).sum())
    assert chi2.sf(statistic, 255) > 1e-4
