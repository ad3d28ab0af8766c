"""What is on its way between two rounds. It is kept in files, so that it does not vanish with a killed process."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedsparq.errors import RunError
from fedsparq.federate.archive import ArchiveError, pack, unpack
from fedsparq.federate.store import write_safely


@dataclass
class Transit:
    """After a round: the answers that will come too late, and what hostile clients may send again."""

    late: list[tuple[int, bytes]] = field(default_factory=list)
    last: dict[int, bytes] = field(default_factory=dict)

    def save(self, folder: Path, number: int) -> None:
        messages = {f"late.{index}": message for index, (_, message) in enumerate(self.late)}
        messages |= {f"last.{client}": message for client, message in self.last.items()}
        about = {"late": [client for client, _ in self.late], "last": list(self.last)}
        arrays = {name: np.frombuffer(message, np.uint8) for name, message in messages.items()}
        write_safely(_file(folder, number), pack(about, arrays))

    @classmethod
    def load(cls, folder: Path, number: int) -> Transit:
        """As it was after a round; before the first one, nothing is on its way."""
        if number == 0:
            return cls()
        path = _file(folder, number)
        try:
            about, arrays = unpack(path.read_bytes())
        except (OSError, ArchiveError) as error:
            raise RunError(f"{path} cannot be read ({error}); remove the run's folder to start anew") from error
        late = [(client, arrays[f"late.{index}"].tobytes()) for index, client in enumerate(about["late"])]
        return cls(late, {client: arrays[f"last.{client}"].tobytes() for client in about["last"]})

    @staticmethod
    def forget(folder: Path, before: int) -> None:
        """Remove what no run will go back to."""
        for path in folder.glob("*.safetensors"):
            if int(path.stem) < before:
                path.unlink(missing_ok=True)


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number}.safetensors"
