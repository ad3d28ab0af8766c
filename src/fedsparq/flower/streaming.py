"""Replies one by one, as they come, instead of all at once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from itertools import islice

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

_AT_ONCE = 16
_PAUSE = 0.1


class StreamingGrid(Grid):
    """A grid around another: `send_and_receive` yields replies while others are still on their way.

    It waits no longer than `deadline` seconds, whatever it is asked.
    """

    def __init__(self, inner: Grid, deadline: float | None = None) -> None:
        self._inner, self._deadline = inner, deadline

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        waiting = dict.fromkeys(filter(None, self._inner.push_messages(messages)))
        patience = min((limit for limit in (timeout, self._deadline) if limit is not None), default=math.inf)
        end = time.monotonic() + patience
        while waiting and time.monotonic() < end:
            arrived = 0
            for ids in _slices(list(waiting)):
                for reply in self._inner.pull_messages(ids):
                    waiting.pop(reply.metadata.reply_to_message_id, None)
                    arrived += 1
                    yield reply
            if waiting and not arrived:
                time.sleep(_PAUSE)

    def set_run(self, run: Run) -> None:
        self._inner.set_run(run)

    @property
    def run(self) -> Run:
        return self._inner.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self._inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self._inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._inner.pull_messages(message_ids)


def _slices(ids: list[str]) -> Iterator[list[str]]:
    rest = iter(ids)
    while part := list(islice(rest, _AT_ONCE)):
        yield part
