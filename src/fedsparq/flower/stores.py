"""Where a Flower node keeps what it must not lose.

In deployment each message runs in a process of its own, which Flower ends within seconds of its reply, and a large
`Context.state` may be lost with it: states go into files beside the node, which only their owner can read. In a
simulation `Context.state` is as good as a file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from flwr.app import Array, ConfigRecord, Context

from fedsparq.archive import ArchiveError, exclusive, pack_parts, read_writable, unpack, write_safely
from fedsparq.federate.state import ClientState, StateError
from fedsparq.federate.store import DiskStore, Loaded
from fedsparq.flower.records import Template, pack_arrays, unpack_arrays
from fedsparq.layout import Layout, Vector

NODE_KEY = "fedsparq-state"
"""The key of a SuperNode's `--node-config` that names the folder for states."""


@dataclass(frozen=True)
class Held:
    """A version of the public model, as the node has it."""

    version: int
    template: Template
    vector: Vector
    exact: dict[str, Array]

    def encode(self) -> list[bytes | memoryview]:
        packed = np.frombuffer(pack_arrays(self.exact), np.uint8)
        about = {"version": self.version, "template": self.template.to_json()}
        return pack_parts(about, {"vector": self.vector, "exact": packed})

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Held | None:
        """None where it cannot be read: the node will ask for the whole model."""
        try:
            about, arrays = unpack(data)
            exact = unpack_arrays(arrays["exact"].tobytes())
            return cls(about["version"], Template.from_json(about["template"]), arrays["vector"], exact)
        except (ArchiveError, KeyError):
            return None


class NodeStore(Protocol):
    """What one node keeps for one kind of model: its state, and the model it holds."""

    def load(self, client: int, layout: Layout) -> Loaded: ...
    def save(self, client: int, state: ClientState) -> None: ...
    def load_held(self) -> Held | None: ...
    def save_held(self, held: Held) -> None: ...
    def locked(self) -> Any:
        """A context in which no other process works on it."""


@dataclass(frozen=True)
class ContextStore:
    """The state as bytes in `Context.state`, for one federation at a time."""

    context: Context
    session: int
    channel: int = 0
    """The digest of the model's layout: each kind of model has its own state."""

    @property
    def _record(self) -> str:
        return f"fedsparq-{self.channel:016x}"

    def load(self, client: int, layout: Layout) -> Loaded:
        data = self._bytes("state")
        if data is None:
            return Loaded(None)
        try:
            return Loaded(ClientState.decode(data, layout, writable=False))
        except StateError as error:
            return Loaded(None, f"the state in Context.state could not be read ({error})")

    def save(self, client: int, state: ClientState) -> None:
        self._put("state", state.encode())

    def load_held(self) -> Held | None:
        data = self._bytes("held")
        return Held.decode(data) if data is not None else None

    def save_held(self, held: Held) -> None:
        self._put("held", b"".join(held.encode()))

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def _bytes(self, name: str) -> bytes | None:
        record = self.context.state.config_records.get(f"{self._record}-{name}")
        if record is None or record.get("session") != f"{self.session:016x}":
            return None
        return bytes(record["data"])  # type: ignore[arg-type]

    def _put(self, name: str, data: bytes) -> None:
        record = ConfigRecord({"session": f"{self.session:016x}", "data": data})
        self.context.state[f"{self._record}-{name}"] = record


@dataclass(frozen=True)
class FileStore:
    """Files in a folder of the node's own, which is locked while a message is at work."""

    folder: Path

    def load(self, client: int, layout: Layout) -> Loaded:
        return self._disk.load(client, layout)

    def save(self, client: int, state: ClientState) -> None:
        self._disk.save(client, state)

    def load_held(self) -> Held | None:
        path = self.folder / "held.safetensors"
        return Held.decode(read_writable(path)) if path.exists() else None

    def save_held(self, held: Held) -> None:
        """Not durable: a node that finds it damaged asks for the whole model."""
        write_safely(self.folder / "held.safetensors", held.encode(), private=True, durable=False)

    def locked(self) -> AbstractContextManager[None]:
        return exclusive(self.folder)

    @property
    def _disk(self) -> DiskStore:
        return DiskStore(self.folder)


def store_for(
    context: Context, session: int, folder: Path | None = None, federation: str = "", channel: int = 0
) -> NodeStore:
    """The store of a node: in the folder given here or in the node's own config, else where it is safe.

    Files are kept apart by federation and node. One that has no name is a run and a session of its own.
    """
    configured = context.node_config.get(NODE_KEY)
    if folder is None and configured is None and _simulated():
        return ContextStore(context, session, channel)
    root = folder or (Path(str(configured)) if configured is not None else default_folder())
    home = f"federation-{federation}" if federation else f"run-{context.run_id}-{session:016x}"
    return FileStore(root / home / f"node-{context.node_id}" / f"{channel:016x}")


def default_folder() -> Path:
    """The user's own folder for states that programs keep."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fedsparq"


def _simulated() -> bool:
    """Whether this is a worker of Flower's simulation: those are Ray's."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
