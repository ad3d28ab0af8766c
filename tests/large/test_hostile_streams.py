"""Streams of some hundred bytes that speak of far more: refused before memory is taken for it."""

import json
import tracemalloc

import numpy as np
import pytest
import xxhash
from safetensors.numpy import save_file

from fedsparq.errors import FedSparQError
from fedsparq.large import Message, apply


def stream(shape: list[int], group: int, cut: int) -> bytes:
    about = {"method": ["fedsparq", "1", {}], "origin": "0" * 16, "round": 1, "group": group, "cut": cut}
    header = json.dumps(about | {"tensors": [["w", shape]]}).encode()
    data = b"FSQS\1" + len(header).to_bytes(4, "little") + header + (2**31 - 1).to_bytes(4, "little")
    return data + xxhash.xxh3_64_intdigest(data).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("shape", "group", "cut"),
    [([10**7], 1, 1), ([2**62], 1, 1), ([2**62], 2**22, 2**26), ([2**31, 2**31], 1, 2**28), ([0, 2**62], 1, 1)],
)
def test_a_short_stream_of_a_large_model(shape, group, cut, tmp_path):
    (tmp_path / "stream").write_bytes(stream(shape, group, cut))
    save_file({"w": np.zeros(shape if shape == [10**7] else [9], np.float32)}, tmp_path / "model")
    tracemalloc.start()
    try:
        for read in (
            lambda: apply(tmp_path / "model", [tmp_path / "stream"], tmp_path / "out", threads=2),
            lambda: Message(tmp_path / "stream").check(threads=2),
        ):
            with pytest.raises(FedSparQError):
                read()
        assert tracemalloc.get_traced_memory()[1] < 1 << 25
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "out").exists()
