"""The stream's bytes, read from FORMAT.md's words alone: no code is shared but the plain decoder of FSQ1."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import xxhash
from plain_decoder import decode

from fedsparq.large import compress

SHAPES = {"a": (3, 50), "b": (20,), "huge": (7, 100), "c": (9,), "d": (1,)}
GROUP, CUT = 160, 300


def plain_pieces(tensors: list, group: int, cut: int) -> list[list[tuple[str, list[int]]]]:
    pieces, now, held = [], [], 0
    for name, shape in tensors:
        size = math.prod(shape)
        if size > cut:
            pieces += [now] if now else []
            now, held = [], 0
            for start in range(0, size, cut):
                stop = min(size, start + cut)
                pieces.append([(f"{name}[{start}:{stop}]", [stop - start])])
        else:
            if now and held + size > group:
                pieces.append(now)
                now, held = [], 0
            now.append((name, shape))
            held += size
    return pieces + ([now] if now else [])


def test_a_plain_reader_of_the_page_reads_the_stream(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    update = {name: rng.laplace(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    compress(update, tmp_path / "r", tmp_path / "m", group=GROUP, cut=CUT)
    data = (tmp_path / "m").read_bytes()
    assert data[:5] == b"FSQS\x01"
    at = 9 + int.from_bytes(data[5:9], "little")
    header = json.loads(data[9:at])
    assert set(header) == {"tensors", "group", "cut", "method", "origin", "round"}
    assert header["tensors"] == [[name, list(shape)] for name, shape in SHAPES.items()]
    found = []
    pieces = plain_pieces(header["tensors"], header["group"], header["cut"])
    assert [len(piece) for piece in pieces] == [1, 1, 1, 1, 1, 2]
    for piece in pieces:
        length = int.from_bytes(data[at : at + 4], "little")
        tensors = [(name, shape, "float32", "parameter") for name, shape in piece]
        found.append(np.array(decode(data[at + 4 : at + 4 + length], tensors)[0], np.float32))
        at += 4 + length
    assert int.from_bytes(data[at:], "little") == xxhash.xxh3_64_intdigest(data[:at])
    residual = np.concatenate([np.asarray(a).reshape(-1) for a in _tensors(tmp_path / "r")])
    owed = np.concatenate([array.reshape(-1) for array in update.values()])
    np.testing.assert_allclose(np.concatenate(found) + residual, owed, rtol=1e-6)


def _tensors(path: Path) -> list[np.ndarray]:
    from safetensors.numpy import load_file

    loaded = load_file(path)
    return [loaded[name] for name in SHAPES]
