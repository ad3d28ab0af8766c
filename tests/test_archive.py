"""Files that tell when they were damaged, and that are never half written."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedsparq.archive import ArchiveError, pack, read_writable, rest, unpack, write_safely


def test_arrays_and_facts_come_back() -> None:
    arrays = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "none": np.empty(0, np.int64), "one": np.array(7)}
    about, found = unpack(pack({"a": 1, "b": ["c", None]}, arrays))
    assert about == {"a": 1, "b": ["c", None]}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)


def test_the_checksum_covers_facts_and_shapes() -> None:
    data = pack({"fact": 1234}, {"x": np.arange(6, dtype=np.float32)})
    with pytest.raises(ArchiveError):
        unpack(data.replace(b"1234", b"1235"))
    with pytest.raises(ArchiveError):
        unpack(data.replace(b"[6]", b"[5]"))


@pytest.mark.parametrize(
    "entry",
    [
        {"data_offsets": ["0", "24"]},
        {"data_offsets": [0.0, 24.0]},
        {"data_offsets": [-24, 0]},
        {"data_offsets": [0, 24, 48]},
        {"data_offsets": "x" * 5000},
        {"shape": [True, 6]},
        {"shape": [-2, -3]},
        {"shape": [2**62] * 5000},
        {"shape": 6},
        {"dtype": ["F32"]},
        {"dtype": "BF16", "shape": [12]},
        {"more": 1},
    ],
    ids=lambda entry: str(entry)[:30],
)
def test_a_forged_entry_is_refused_in_few_words(entry: dict) -> None:
    data = pack({}, {"x": np.arange(6, dtype=np.float32)})
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    forged = json.dumps(header | {"x": header["x"] | entry}).encode()
    with pytest.raises(ArchiveError) as raised:
        unpack(len(forged).to_bytes(8, "little") + forged + data[8 + length :])
    assert len(str(raised.value)) < 300


def test_any_damage_is_noticed() -> None:
    data = pack({"fact": 1234}, {"x": np.arange(6, dtype=np.float32)})
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x04
        with pytest.raises(ArchiveError):
            unpack(bytes(damaged))
    for length in range(len(data)):
        with pytest.raises(ArchiveError):
            unpack(data[:length])


def test_write_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_safely(path, b"one")
    write_safely(path, b"two")
    assert path.read_bytes() == b"two"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3).T,
        np.arange(10)[::3],
        np.array([1, 2], ">f4"),
        np.float64(7),
        np.array([True, False]),
    ],
    ids=["transposed", "strided", "of the other byte order", "a scalar", "booleans"],
)
def test_arrays_come_back_however_they_lie_in_memory(array: np.ndarray) -> None:
    found = unpack(pack({}, {"x": array}))[1]["x"]
    assert found.shape == array.shape
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None])], ids=["words", "objects"])
def test_what_cannot_be_saved_is_said_to_be(array: np.ndarray) -> None:
    with pytest.raises(ArchiveError, match="only arrays of numbers"):
        pack({}, {"x": array})


def test_what_was_read_can_be_changed_and_the_file_stays(tmp_path: Path) -> None:
    path, values = tmp_path / "file", np.arange(5000, dtype=np.float32)
    write_safely(path, pack({}, {"x": values}))
    before, data = path.read_bytes(), read_writable(path)
    _, arrays = unpack(data)
    rest(data)
    np.testing.assert_array_equal(arrays["x"], values)
    write_safely(path, b"another")
    np.testing.assert_array_equal(arrays["x"], values)
    arrays["x"] += 1
    np.testing.assert_array_equal(arrays["x"], values + 1)
    write_safely(path, before)
    np.testing.assert_array_equal(unpack(read_writable(path))[1]["x"], values)
    path.write_bytes(b"")
    assert not read_writable(path)
