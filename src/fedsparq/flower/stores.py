"""Where a Flower node keeps what it must not lose.

In deployment each message runs in a process of its own, which Flower ends within seconds of its reply, and a large
`Context.state` may be lost with it: states go into files beside the node, which only their owner can read. In a
simulation `Context.state` is as good as a file.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ConfigRecord, Context

from fedsparq.federate.messages import Broadcast
from fedsparq.federate.state import ClientState, HeldModel, StateError
from fedsparq.federate.store import DiskStore, Loaded
from fedsparq.layout import Layout

NODE_KEY = "fedsparq-state"
"""The key of a SuperNode's `--node-config` that names the folder for states."""


@dataclass(frozen=True)
class ContextStore:
    """The state as bytes in `Context.state`, for one federation at a time."""

    context: Context
    session: int
    layout_digest: int = 0
    """Each kind of model has its own state."""

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

    def load_held(self, client: int, layout: Layout) -> HeldModel | None:
        data = self._bytes("held")
        return HeldModel.decode(data) if data is not None else None

    def save_held(self, client: int, held: HeldModel) -> None:
        self._put("held", b"".join(held.encode_parts()))

    def locked(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _key(self, name: str) -> str:
        return f"fedsparq-{self.layout_digest:016x}-{name}"

    def _bytes(self, name: str) -> bytes | None:
        record = self.context.state.config_records.get(self._key(name))
        if record is None or record.get("session") != f"{self.session:016x}":
            return None
        return bytes(record["data"])  # type: ignore[arg-type]

    def _put(self, name: str, data: bytes) -> None:
        self.context.state[self._key(name)] = ConfigRecord({"session": f"{self.session:016x}", "data": data})


def store_for(context: Context, broadcast: Broadcast, folder: Path | None = None) -> ContextStore | DiskStore:
    """The store of a node: in the folder given here or in the node's own config, else where it is safe.

    Files are kept apart by federation, node and kind of model. A federation without a name is a run and a session.
    """
    configured = context.node_config.get(NODE_KEY)
    if folder is None and configured is None and _simulated():
        return ContextStore(context, broadcast.session, broadcast.layout_digest)
    root = folder or (Path(str(configured)) if configured is not None else default_folder())
    named = f"federation-{broadcast.federation}"
    home = named if broadcast.federation else f"run-{context.run_id}-{broadcast.session:016x}"
    return DiskStore(root / home / f"node-{context.node_id}" / f"{broadcast.layout_digest:016x}")


def default_folder() -> Path:
    """The user's own folder for states that programs keep."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fedsparq"


def _simulated() -> bool:
    """Whether this is a worker of Flower's simulation: those are Ray's."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
