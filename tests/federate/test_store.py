"""States on disk: whole at every moment, old ones tidied away, broken ones set aside and named."""

import errno
import os
from pathlib import Path

import pytest
from small_federation import FEDSPARQ, LAYOUT

from fedsparq.errors import RunError
from fedsparq.federate.state import ClientState
from fedsparq.federate.store import DiskStore, MemoryStore, Store
from fedsparq.method import Identity


def state(number: int) -> ClientState:
    return ClientState(FEDSPARQ.init(LAYOUT), Identity("method"), number, b"in flight")


def rounds(folder: Path, client: int = 0) -> set[str]:
    return {path.name for path in (folder / f"client-{client}").iterdir()}


def loaded_round(store: Store, client: int = 0) -> int | None:
    found = store.load(client, LAYOUT).state
    return None if found is None else found.round


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_the_last_state_of_each_client_comes_back(tmp_path: Path, kind: str) -> None:
    store: Store = MemoryStore() if kind == "memory" else DiskStore(tmp_path)
    assert loaded_round(store) is None
    for number in (1, 2, 10):
        store.save(0, state(number))
    store.save(1, state(7))
    assert (loaded_round(store), loaded_round(store, 1), loaded_round(store, 2)) == (10, 7, None)
    assert store.load(0, LAYOUT).remark == ""


def test_only_what_may_be_needed_is_kept(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        DiskStore(tmp_path).save(0, state(number))
    assert rounds(tmp_path) == {"3.safetensors"}
    for number in (4, 5, 6):
        DiskStore(tmp_path, saved=4).save(0, state(number))
    assert rounds(tmp_path) == {"4.safetensors", "6.safetensors"}
    DiskStore(tmp_path).go_back(4)
    assert loaded_round(DiskStore(tmp_path)) == 4
    DiskStore(tmp_path, saved=5).save(0, state(6))
    assert rounds(tmp_path) == {"4.safetensors", "6.safetensors"}


@pytest.mark.parametrize("damage", [b"", b"nonsense", "flip", "cut"])
def test_unreadable_file_is_set_aside_and_named(tmp_path: Path, damage: bytes | str) -> None:
    store = DiskStore(tmp_path, saved=1)
    for number in (1, 2):
        store.save(0, state(number))
    path = tmp_path / "client-0" / "2.safetensors"
    data = path.read_bytes()
    broken = {"flip": data[:-1] + bytes([data[-1] ^ 1]), "cut": data[:-1]}.get(str(damage), damage)
    path.write_bytes(broken)  # type: ignore[arg-type]
    found = store.load(0, LAYOUT)
    assert found.state is not None
    assert found.state.round == 1
    assert "2.safetensors could not be read" in found.remark
    assert "2.unreadable" in found.remark
    assert (tmp_path / "client-0" / "2.unreadable").read_bytes() == broken
    store.save(0, state(2))
    path.write_bytes(b"again")
    assert "set aside as 2.unreadable-1" in store.load(0, LAYOUT).remark
    assert rounds(tmp_path) == {"1.safetensors", "2.unreadable", "2.unreadable-1"}


def test_no_state_left_is_said_too(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.save(0, state(1))
    (tmp_path / "client-0" / "1.safetensors").write_bytes(b"x")
    found = store.load(0, LAYOUT)
    assert found.state is None
    assert "1.safetensors" in found.remark


def test_file_that_cannot_be_opened_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DiskStore(tmp_path)
    store.save(0, state(1))

    def denied(self: Path, mode: str = "r") -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", denied)
        with pytest.raises(RunError, match="left there"):
            store.load(0, LAYOUT)
    assert loaded_round(store) == 1


@pytest.mark.parametrize("call", ["os.open", "os.fsync", "os.replace", "fedsparq.archive.sync_folder"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_failed_write_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    store = DiskStore(tmp_path)
    store.save(0, state(1))

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(call, fail)
        with pytest.raises(RunError, match=os.strerror(code)):
            store.save(0, state(2))
    left = 2 if call.endswith("sync_folder") else 1
    assert loaded_round(store) == left, "only the folder could not be synced: the new file is whole"
    assert not list((tmp_path / "client-0").glob(".*"))


@pytest.mark.parametrize("durable", [True, False])
def test_killed_writer_leaves_nothing_behind(tmp_path: Path, durable: bool) -> None:
    """At each moment of a save the process ends: no clean-up runs."""
    script = """
import os, sys
from pathlib import Path
from test_store import state
from fedsparq.federate.store import DiskStore
moment = [int(sys.argv[2])]
def count(real):
    def call(*args, **kwargs):
        moment[0] -= 1
        if moment[0] == 0:
            os._exit(9)
        return real(*args, **kwargs)
    return call
store = DiskStore(Path(sys.argv[1]), durable=sys.argv[3] == "True")
for name in ("fsync", "replace", "open", "unlink"):
    setattr(os, name, count(getattr(os, name)))
store.save(0, state(2))
"""
    import subprocess
    import sys

    store = DiskStore(tmp_path)
    store.save(0, state(1))
    for moment in range(1, 9):
        command = [sys.executable, "-c", script, str(tmp_path), str(moment), str(durable)]
        here = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        code = subprocess.run(command, env={**os.environ, "PYTHONPATH": here}, check=False).returncode
        assert loaded_round(store) in (1, 2)
        assert store.load(0, LAYOUT).remark == ""
        if code == 0:
            break
    else:
        pytest.fail("the save never came to its end")
    assert rounds(tmp_path) == {"2.safetensors"}
