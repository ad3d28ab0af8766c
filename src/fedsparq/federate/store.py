"""Where client states live: in memory, or one file a client that survives a crash at any moment."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Protocol

from fedsparq.archive import SCRATCH, exclusive, read_writable, rest, write_safely
from fedsparq.errors import RunError
from fedsparq.federate.state import ClientState, HeldModel, StateError
from fedsparq.layout import Layout

_HELD, _SUFFIX = "held-", ".safetensors"


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

    def load_held(self, client: int, layout: Layout) -> HeldModel | None:
        """The public model that the client holds, if it is still there."""

    def save_held(self, client: int, held: HeldModel) -> None:
        """Keep a public model. It need not survive a power failure."""


@dataclass
class MemoryStore:
    """States as long as the process lives."""

    states: dict[int, ClientState] = field(default_factory=dict)
    held: dict[int, HeldModel] = field(default_factory=dict)

    def load(self, client: int, layout: Layout) -> Loaded:
        return Loaded(self.states.get(client))

    def save(self, client: int, state: ClientState) -> None:
        self.states[client] = state

    def load_held(self, client: int, layout: Layout) -> HeldModel | None:
        return self.held.get(client)

    def save_held(self, client: int, held: HeldModel) -> None:
        self.held[client] = held


@dataclass(frozen=True)
class DiskStore:
    """A folder a client, in it a file named by its round; a file is written and renamed, never changed.

    `saved` is the round of the last checkpoint that a run may have to go back to: the newest state up to that round is
    kept beside the newest of all. Every other state is removed. Files and folders are their owner's alone.
    """

    folder: Path
    saved: int | None = None
    durable: bool = True
    """Whether `save` returns when the state would survive a power failure; if not, `os.sync` is the caller's."""

    def load(self, client: int, layout: Layout) -> Loaded:
        """The newest state that can be read; any newer one is set aside under another name, and named."""
        remarks: list[str] = []
        for _, path in self._versions(client):
            try:
                data = read_writable(path)
                loaded = Loaded(ClientState.decode(data, layout), "; ".join(remarks))
                rest(data)
                return loaded
            except StateError as error:
                aside = _set_aside(path)
                remarks.append(f"state file {path.name} could not be read ({error}); set aside as {aside.name}")
            except OSError as error:
                raise RunError(
                    f"the state {path} cannot be read: {error.strerror or error}; it is left there"
                ) from error
        return Loaded(None, "; ".join(remarks))

    def save(self, client: int, state: ClientState) -> None:
        folder = self.folder / f"client-{client}"
        path = folder / f"{state.round}{_SUFFIX}"
        write_safely(path, state.encode_parts(), private=True, durable=self.durable)
        self._tidy(folder, state.round)

    def load_held(self, client: int, layout: Layout) -> HeldModel | None:
        for _, path in self._versions(client, _HELD):
            held = HeldModel.decode(read_writable(path), layout)
            if held is not None:
                return held
        return None

    def save_held(self, client: int, held: HeldModel) -> None:
        folder = self.folder / f"client-{client}"
        path = folder / f"{_HELD}{held.version}{_SUFFIX}"
        write_safely(path, held.encode_parts(), private=True, durable=False)
        self._tidy(folder, held.version, _HELD)

    def locked(self) -> AbstractContextManager[None]:
        """A context in which no other process works in the folder."""
        return exclusive(self.folder)

    def go_back(self, number: int) -> None:
        """Remove every client's states of rounds after `number`: the run goes on from there."""
        for path in self.folder.glob(f"client-*/*{_SUFFIX}"):
            version = path.stem.removeprefix(_HELD)
            if version.isdecimal() and int(version) > number:
                path.unlink()

    def keep_newest(self) -> None:
        """Remove all but every client's newest state and held model: the run is over."""
        for folder in self.folder.glob("client-*"):
            names = os.listdir(folder)
            newest = {name for prefix in ("", _HELD) for _, name in _versions(names, prefix)[:1]}
            for name in {*names} - newest:
                os.unlink(folder / name)

    def _versions(self, client: int, prefix: str = "") -> list[tuple[int, Path]]:
        """A client's files, newest round first."""
        folder = self.folder / f"client-{client}"
        names = os.listdir(folder) if folder.exists() else []
        return [(number, folder / name) for number, name in _versions(names, prefix)]

    def _tidy(self, folder: Path, newest: int, prefix: str = "") -> None:
        """Remove what is neither the newest nor what a run may have to go back to."""
        names = os.listdir(folder)
        older = [(number, old) for number, old in _versions(names, prefix) if number != newest]
        needed = max((number for number, _ in older if self.saved is not None and number <= self.saved), default=None)
        unneeded = [old for number, old in older if number != needed]
        for name in (*unneeded, *(name for name in names if name.startswith(".") and name.endswith(SCRATCH))):
            (folder / name).unlink(missing_ok=True)


def _versions(names: Iterable[str], prefix: str) -> list[tuple[int, str]]:
    """The names of states or held models, newest round first."""
    ours = [name for name in names if name.startswith(prefix) and name.endswith(_SUFFIX)]
    versions = [(name.removeprefix(prefix).removesuffix(_SUFFIX), name) for name in ours]
    return sorted(((int(version), name) for version, name in versions if version.isdecimal()), reverse=True)


def _set_aside(path: Path) -> Path:
    """Rename a file that cannot be read, to a name that is free."""
    names = (path.with_suffix(f".unreadable{f'-{number}' if number else ''}") for number in count())
    aside = next(name for name in names if not name.exists())
    os.replace(path, aside)
    return aside
