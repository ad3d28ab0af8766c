"""A grid around another: what a strategy sends leaves compressed, and what it gets is plain."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedsparq.flower.arrivals import Arrived
from fedsparq.flower.link import Link
from fedsparq.flower.receiving import receive

_AT_ONCE = 16
_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_PATIENCE, _LEAST_PATIENCE = 5.0, 60.0

Push = Callable[[Iterable[Message]], Iterable[str]]
Pull = Callable[[Iterable[str]], Iterable[Message]]
Deliver = Callable[[Arrived], Message]


class ReplyReader:
    """Pulls replies and reads them; who asks for the whole model is sent it, and its answer is waited for instead."""

    def __init__(self, link: Link, push: Push, pull: Pull, deliver: Deliver) -> None:
        self._link, self._push, self._pull, self._deliver = link, push, pull, deliver
        self._instead: dict[str, str] = {}
        self._first: dict[str, str] = {}
        self.asked_again = 0

    def pull(self, message_ids: Iterable[str]) -> Iterator[Message]:
        asked = [self._instead.get(name, name) for name in message_ids]
        for reply in self._pull(asked):
            arrived = receive(self._link, reply)
            name = reply.metadata.reply_to_message_id
            if arrived.wanted and arrived.sent is not None:
                (again,) = self._push([self._link.again(arrived.sent)])
                self.asked_again += 1
                first = self._first.pop(name, name)
                self._instead[first], self._first[again] = again, first
                continue
            delivered = self._deliver(arrived)
            if name in self._first:
                delivered.metadata.__dict__["_reply_to_message_id"] = self._first.pop(name)
            yield delivered


class LinkedGrid(Grid):
    """All of a grid's interface. `deliver` makes of a reply what the strategy shall see.

    `send_and_receive` gives replies while others are still on their way. It waits no longer than `timeout`; without a
    `deadline` of its own, no longer either than five times the slowest reply so far, and at least a minute.
    """

    def __init__(self, inner: Grid, link: Link, deliver: Deliver, deadline: float | None = None) -> None:
        self.inner, self._link, self._deadline = inner, link, deadline
        self._reader = ReplyReader(link, inner.push_messages, inner.pull_messages, deliver)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.inner.push_messages(self._link.address(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return list(self._reader.pull(message_ids))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return list(self.stream(messages, timeout))

    def stream(self, messages: Iterable[Message], timeout: float | None = None) -> Iterator[Message]:
        """Replies one by one, as they come."""
        listed = self._link.address(messages)
        waiting = dict.fromkeys(filter(None, self.inner.push_messages(listed)))
        begun, pause, answered = time.monotonic(), _PAUSE, False
        while waiting:  # what is there is taken, however short the patience
            arrived, again = 0, self._reader.asked_again
            for ids in _slices(list(waiting)):
                for reply in self._reader.pull(ids):
                    waiting.pop(reply.metadata.reply_to_message_id, None)
                    arrived += 1
                    yield reply
            answered |= arrived > 0
            if self._reader.asked_again > again:
                begun, pause = time.monotonic(), _PAUSE
                continue
            left = self._patience(timeout, answered) - (time.monotonic() - begun)
            if left <= 0:
                break
            pause = _PAUSE if arrived else min(2 * pause, _LONGEST_PAUSE)
            if waiting and not arrived:
                time.sleep(min(pause, left))
        self._link.give_up_unanswered(listed)

    def _patience(self, timeout: float | None, answered: bool) -> float:
        limits = [math.inf if timeout is None else timeout]
        if self._deadline is not None:
            limits.append(self._deadline)
        elif answered and self._link.slowest:
            limits.append(max(_LEAST_PATIENCE, _PATIENCE * self._link.slowest))
        return min(limits)

    def set_run(self, run: Run) -> None:
        self.inner.set_run(run)

    @property
    def run(self) -> Run:
        return self.inner.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self.inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self.inner.get_node_ids()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)


class StreamingGrid(LinkedGrid):
    """A grid whose `send_and_receive` gives replies one by one: whoever takes them need not hold them all."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.stream(messages, timeout)


def attach(grid: Grid, link: Link, deliver: Deliver) -> None:
    """Make a grid that somebody else's loop uses give plain replies, so that wrappers around us see no bytes."""
    if isinstance(grid, LinkedGrid) or getattr(grid, "_fedsparq", None) is link:
        return
    reader = ReplyReader(link, grid.push_messages, grid.pull_messages, deliver)
    grid.__dict__["pull_messages"] = lambda message_ids: list(reader.pull(message_ids))
    grid.__dict__["_fedsparq"] = link


def _slices(ids: list[str]) -> Iterator[list[str]]:
    rest = iter(ids)
    while part := list(islice(rest, _AT_ONCE)):
        yield part
