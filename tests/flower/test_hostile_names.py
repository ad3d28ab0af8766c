"""Names that a server says and a node makes folders of: none leads out of the node's own folder."""

from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Message
from flwr.serverapp.strategy import FedAvg
from toy import client_app, model

from fedsparq.errors import RunError
from fedsparq.flower import Compressed, compress
from fedsparq.payload.frame import pack_frame, read_frame
from inprocess_grid import InProcessGrid

SAID = "aaaaaaaaaaaa"
"""What the honest server says; a hostile one says something as long, so that every length beside it still holds."""

HOSTILE = ["x/../../../y", "/../../../yy", "aa/aaaaaaaaa", "../aaaaaaaaa", ".aaaaaaaaaaa", "aaaaaaaaaaa "]


class Lying:
    """An app behind a server, or a wire, that says another name of the federation."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.app = name, client_app(compress(state=folder))

    def __call__(self, message: Message, context: Context) -> Message:
        for key, record in message.content.config_records.items():
            changed = {k: self.forged(v) if isinstance(v, bytes) else v for k, v in record.items()}
            message.content[key] = ConfigRecord(changed)
        return self.app(message, context)

    def forged(self, frame: bytes) -> bytes:
        read = read_frame(frame, "B")
        return pack_frame("B", read.metadata.replace(SAID.encode(), self.name.encode()), read.blobs)


def play(name: str, folder: Path) -> None:
    grid = InProcessGrid([Lying(name, folder)] * 2)
    Compressed(FedAvg(fraction_evaluate=0.0), federation=SAID).start(grid, model(), num_rounds=1, timeout=1)


def test_an_ordinary_name_is_a_folder(tmp_path):
    play("hospital-1.b", tmp_path / "a" / "b" / "states")
    assert (tmp_path / "a" / "b" / "states" / "federation-hospital-1.b").is_dir()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_is_a_path_is_refused_and_nothing_is_written(name, tmp_path):
    with pytest.raises(RunError):
        play(name, tmp_path / "a" / "b" / "states")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
