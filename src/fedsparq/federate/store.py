"""Where client states live: in memory, or one file a client that survives a crash at any moment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fedsparq.errors import RunError
from fedsparq.federate.state import ClientState, StateError
from fedsparq.layout import Layout


@dataclass(frozen=True)
class Loaded:
    """A state, or none; and what there is to say about it."""

    state: ClientState | None
    remark: str = ""


class Store(Protocol):
    def load(self, client: int, layout: Layout) -> Loaded:
        """The client's last state."""

    def save(self, client: int, state: ClientState) -> None:
        """Make a state the client's last one. When this returns, it is safe."""


@dataclass
class MemoryStore:
    """States as long as the process lives."""

    states: dict[int, ClientState] = field(default_factory=dict)

    def load(self, client: int, layout: Layout) -> Loaded:
        return Loaded(self.states.get(client))

    def save(self, client: int, state: ClientState) -> None:
        self.states[client] = state


@dataclass(frozen=True)
class DiskStore:
    """A folder a client, in it a file named by its round; a file is written, synced and renamed, never changed.

    `saved` is the round of the last checkpoint that a run may have to go back to: the newest state up to that round is
    kept beside the newest of all. Every other state is removed.
    """

    folder: Path
    saved: int | None = None

    def load(self, client: int, layout: Layout) -> Loaded:
        for _, path in self._versions(client):
            try:
                return Loaded(ClientState.decode(path.read_bytes(), layout))
            except (StateError, OSError) as error:
                aside = path.with_suffix(".unreadable")
                os.replace(path, aside)
                return Loaded(None, f"state file {path.name} could not be read ({error}); set aside as {aside.name}")
        return Loaded(None)

    def save(self, client: int, state: ClientState) -> None:
        path = self.folder / f"client-{client}" / f"{state.round}.safetensors"
        write_safely(path, state.encode())
        older = [(number, old) for number, old in self._versions(client) if number != state.round]
        needed = max((number for number, _ in older if self.saved is not None and number <= self.saved), default=None)
        for number, old in older:
            if number != needed:
                old.unlink(missing_ok=True)

    def go_back(self, number: int) -> None:
        """Remove every client's states of rounds after `number`: the run goes on from there."""
        for path in self.folder.glob("client-*/*.safetensors"):
            if path.stem.isdecimal() and int(path.stem) > number:
                path.unlink()

    def _versions(self, client: int) -> list[tuple[int, Path]]:
        """This client's files, newest round first."""
        found = (self.folder / f"client-{client}").glob("*.safetensors")
        return sorted(((int(path.stem), path) for path in found if path.stem.isdecimal()), reverse=True)


def write_safely(path: Path, data: bytes) -> None:
    """Write a file so that at any moment either the old or the new one is there, whole."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise RunError(f"could not write {path}: {error.strerror or error}; nothing that was there is lost") from error
