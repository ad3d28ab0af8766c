"""A Flower grid in this process: every message is serialized as on a real link, and nothing waits for anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

Fate = Callable[[Message], Message | None]
"""What becomes of a reply on its way: itself, another, or None for a reply that is lost."""


class InProcessGrid(Grid):
    """Nodes 100, 101, ... each with an app of its own or a common one."""

    def __init__(
        self, apps: list[ClientApp], fate: Fate = lambda reply: reply, node_config: dict | None = None
    ) -> None:
        self.apps = dict(enumerate(apps, 100))
        self.contexts = {
            node: Context(1, node, {"partition-id": node - 100, **(node_config or {})}, RecordDict(), {})
            for node in self.apps
        }
        self.fate = fate
        self.down: dict[int, int] = dict.fromkeys(self.apps, 0)
        self.up: dict[int, int] = dict.fromkeys(self.apps, 0)
        self.replies: list[Message] = []
        self._ids = count(1)
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self._waiting: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(next(self._ids))
            sent.append(message.metadata.message_id)
            reply = self._serve(message)
            if reply is not None:
                self._waiting[sent[-1]] = reply
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._waiting.pop(key) for key in message_ids if key in self._waiting]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _serve(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        arrived, size = _carried(message)
        self.down[node] += size
        try:
            reply, size = _carried(self.apps[node](arrived, self.contexts[node]))
        except Exception as error:
            reply, size = Message(Error(2, repr(error)), reply_to=message), 0
        self.up[node] += size
        self.replies.append(reply)
        return self.fate(reply)

    def get_node_ids(self) -> list[int]:
        return list(self.apps)

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> object:  # type: ignore[override]
        return None

    def create_message(self, *args: object, **kwargs: object) -> Message:
        raise NotImplementedError


def _carried(message: Message) -> tuple[Message, int]:
    """A message after its way over the wire, and the bytes of it."""
    contents = {key: part.deflate() for key, part in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, dict(contents))
    arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
    return arrived, sum(map(len, contents.values()))
