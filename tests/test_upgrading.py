"""docs/UPGRADING.md holds: files that FedSparQ 0.1.0 wrote are read, or refused with one sentence that says what to do.

`written_by_0_1_0` was made by the code of that release: `messages` by each of its methods for one layout, with what it
decoded them to; `finished` and `interrupted` by `fedsparq run spec.toml`, whose model pools an image to 7 x 7 pixels.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedsparq
from fedsparq.errors import RunError, WireError
from fedsparq.federate.messages import Broadcast
from fedsparq.lab.specs import RunSpec, check, load_compare, read_toml

OLD = Path(__file__).with_name("written_by_0_1_0")
MESSAGES = sorted((OLD / "messages").glob("*.fsq"))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    made = "nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(49, outputs))"
    (tmp_path / "tiny.py").write_text(f"from torch import nn\ndef tiny(inputs, outputs):\n    return {made}\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", MESSAGES, ids=lambda path: path.stem)
def test_messages_of_every_method_are_read_and_would_be_written_the_same(path: Path) -> None:
    shapes = json.loads((OLD / "messages" / "layout.json").read_text())
    layout = fedsparq.Layout.of({name: tuple(shape) for name, shape in shapes.items()})
    payload = fedsparq.decode(path.read_bytes(), layout)
    np.testing.assert_array_equal(payload.dense(), np.load(OLD / "messages" / "decoded.npz")[path.stem])
    assert fedsparq.encode(payload) == path.read_bytes()
    assert set(np.load(OLD / "messages" / "decoded.npz")) == {path.stem for path in MESSAGES}


def test_broadcasts_are_refused_with_both_versions_named() -> None:
    with pytest.raises(WireError, match=r"of version 1, .* reads version \d"):
        Broadcast.decode((OLD / "messages" / "broadcast.bin").read_bytes())


def test_specs_are_read() -> None:
    assert check(RunSpec, read_toml(OLD / "spec.toml")).options == {"multiplier": 2.0}
    assert check(RunSpec, read_toml(OLD / "finished" / "spec.toml")).model == "tiny:tiny"
    assert len(load_compare(OLD / "sweep.toml", {}).runs()) == 8


def test_a_finished_run_is_read_and_not_run_again(model: None, tmp_path: Path) -> None:
    shutil.copytree(OLD / "finished", tmp_path / "finished")
    result = fedsparq.run(spec=tmp_path / "finished" / "spec.toml", out=tmp_path / "finished")
    assert result.summary == json.loads((OLD / "finished" / "summary.json").read_text())
    assert list(result.rounds["accuracy"]) == [18.0, 29.0]


def test_an_interrupted_run_is_refused_and_left_as_it_is(model: None, tmp_path: Path) -> None:
    shutil.copytree(OLD / "interrupted", tmp_path / "cut")
    with pytest.raises(RunError, match=r"has format 1, .* reads format \d: go on with the version that wrote it, or"):
        fedsparq.run(spec=tmp_path / "cut" / "spec.toml", out=tmp_path / "cut", resume=True)
    for path in (path for path in (OLD / "interrupted").rglob("*") if path.is_file()):
        assert (tmp_path / "cut" / path.relative_to(OLD / "interrupted")).read_bytes() == path.read_bytes()


def test_a_client_state_is_set_aside_whole(tmp_path: Path) -> None:
    shutil.copytree(OLD / "interrupted" / "state" / "clients", tmp_path / "clients")
    layout = fedsparq.Layout.of({"2.weight": (10, 49), "2.bias": (10,)})
    loaded = fedsparq.DiskStore(tmp_path / "clients").load(0, layout)
    assert loaded.state is None
    assert "it is of version 1; this program reads version" in loaded.remark
    (aside,) = (tmp_path / "clients" / "client-0").iterdir()
    assert aside.name in loaded.remark
    assert aside.read_bytes() == (OLD / "interrupted/state/clients/client-0/2.safetensors").read_bytes()
