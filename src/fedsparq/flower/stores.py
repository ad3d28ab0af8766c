"""Where a Flower node keeps what it must not lose.

In deployment each message runs in a process of its own, which Flower ends within seconds of its reply, and a large
`Context.state` may be lost with it: states go into files beside the node. In a simulation `Context.state` is as good
as a file.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ConfigRecord, Context

from fedsparq.federate.state import ClientState, StateError
from fedsparq.federate.store import DiskStore, Loaded, Store
from fedsparq.layout import Layout

NODE_KEY = "fedsparq-state"
"""The key of a SuperNode's `--node-config` that names the folder for states."""

_RECORD = "fedsparq"


@dataclass(frozen=True)
class ContextStore:
    """The state as bytes in `Context.state`, for one federation at a time."""

    context: Context
    session: int

    def load(self, client: int, layout: Layout) -> Loaded:
        record = self.context.state.config_records.get(_RECORD)
        if record is None or record.get("session") != f"{self.session:016x}":
            return Loaded(None)
        try:
            return Loaded(ClientState.decode(bytes(record["state"]), layout))  # type: ignore[arg-type]
        except StateError as error:
            return Loaded(None, f"the state in Context.state could not be read ({error})")

    def save(self, client: int, state: ClientState) -> None:
        self.context.state[_RECORD] = ConfigRecord({"session": f"{self.session:016x}", "state": state.encode()})


def store_for(context: Context, session: int, folder: Path | None = None) -> Store:
    """The store of a node: in the folder given here or in the node's own config, else where it is safe.

    Files are kept apart by run, federation and node, as the server's books are.
    """
    configured = context.node_config.get(NODE_KEY)
    if folder is None and configured is None and _simulated():
        return ContextStore(context, session)
    root = folder or (Path(str(configured)) if configured is not None else default_folder())
    return DiskStore(root / f"run-{context.run_id}-{session:016x}" / f"node-{context.node_id}")


def default_folder() -> Path:
    """The user's own folder for states that programs keep."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fedsparq"


def _simulated() -> bool:
    """Whether this is a worker of Flower's simulation: those are Ray's."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
