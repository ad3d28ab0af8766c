"""The server's side: any strategy of Flower's behind compressed messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from logging import INFO
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from fedsparq.errors import OptionError
from fedsparq.flower.advice import calls_aggregate, check_message_api, say_who_decides, warn_of_robust
from fedsparq.flower.arrivals import Arrived, arrays_of
from fedsparq.flower.channel import Sent
from fedsparq.flower.checkpoint import Checkpoint
from fedsparq.flower.grid import LinkedGrid, attach
from fedsparq.flower.integers import Integers
from fedsparq.flower.link import Link
from fedsparq.flower.mod import portable
from fedsparq.flower.receiving import receive
from fedsparq.flower.records import cast, only_arrays
from fedsparq.flower.reports import RoundReport
from fedsparq.flower.rules import check_runs
from fedsparq.flower.running import Evaluate, check_ended, hooked, result_of, shifted, way_down
from fedsparq.flower.stream import Base
from fedsparq.method import Method

_MOST_DELIVERED = 10_000
"""So many replies are remembered that a strategy was given and has not aggregated."""


class Compressed(Strategy):
    """Any strategy of Flower's, its messages small: ``strategy = Compressed(FedAvg(...))``.

    The inner strategy runs its own `start`, makes its own messages and sees what it would see without compression: the
    arrays that it sent to a node plus that node's update, in their own types. Its attributes are this one's. A reply
    counts, and its client may forget it, when the inner strategy was given it and returned a model.

    With `downlink`, a method too, nodes are sent only what changed since the model they hold. With `checkpoint`, a
    folder, and `federation`, a name, a new run goes on where the last one ended or was killed. Methods are given by
    name, as ``package.module:function``, or as what `fedsparq.method` returned. The inner strategy averages and steps:
    those parts of a method are not used. `deadline` is how many seconds a round waits at most; by default five times
    the slowest reply so far, and a minute at least.
    """

    inner: Strategy

    def __init__(
        self,
        strategy: Strategy,
        method: str | Method = "fedsparq",
        *,
        downlink: str | Method | None = None,
        checkpoint: str | Path | None = None,
        federation: str = "",
        deadline: float | None = None,
        runs: Sequence[str] = (),
        **options: Any,
    ) -> None:
        check_message_api(strategy)
        chosen = portable(method, options)
        check_runs(chosen, runs, "Compressed(...) and compress(...)")
        if chosen.traits.requires_own_server:
            raise OptionError(
                f"{chosen.label!r} has a server of its own: use FedSparQ({chosen.name!r}), not Compressed"
            )
        self.__dict__["inner"] = strategy
        self._link = Link(chosen, way_down(downlink), federation)
        self._checkpoint = Checkpoint(checkpoint, strategy, self._link) if checkpoint is not None else None
        self._deadline, self._offset = deadline, 0
        self._integers, self._arrays = Integers(strategy), ArrayRecord()
        self._delivered: dict[str, Sent] = {}
        self._configure, self._aggregate = strategy.configure_train, strategy.aggregate_train
        self._delivery_counts = not calls_aggregate(strategy)
        warn_of_robust(strategy, chosen)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "inner" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        theirs = not name.startswith("_") and name not in self.__dict__ and hasattr(self.inner, name)
        setattr(self.inner, name, value) if theirs else object.__setattr__(self, name, value)

    @property
    def rounds(self) -> list[RoundReport]:
        """What each round weighed, who counted and what happened."""
        return self._link.report.rounds

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
        **more: Any,
    ) -> Result:
        """Run the inner strategy's own `start`. Ends with an error where no reply ever counted."""
        say_who_decides(self.inner, self._link.method)
        with self._checkpoint.locked() if self._checkpoint is not None else nullcontext():
            more |= {"train_config": train_config, "evaluate_config": evaluate_config}
            return self._start(grid, initial_arrays, num_rounds, timeout, evaluate_fn, more)

    def _start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int,
        timeout: float,
        evaluate_fn: Evaluate | None,
        more: dict[str, Any],
    ) -> Result:
        arrays = self._resumed(initial_arrays)
        left = num_rounds - self._offset
        if left <= 0 < self._offset:
            return result_of(arrays)
        offset, evaluate = self._offset, evaluate_fn
        if evaluate is not None and offset:
            more["evaluate_fn"] = lambda number, now: evaluate(number + offset, now)
        elif evaluate is not None:
            more["evaluate_fn"] = evaluate
        linked = LinkedGrid(grid, self._link, self._deliver, self._deadline)
        before = len(self.rounds)
        with hooked(self.inner, self._configured, self._aggregated, offset):
            result = self.inner.start(linked, arrays, left, timeout, **more)
        check_ended(result, left, self.rounds[before:], self._link.report.commonest)
        if self._checkpoint is not None:
            last = result.arrays if isinstance(result, Result) and len(result.arrays) else self._arrays
            self._checkpoint.save(num_rounds, last)
        return shifted(result, offset)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = self._configured(server_round, arrays, config, grid)
        if isinstance(grid, LinkedGrid):
            return messages
        attach(grid, self._link, self._deliver)
        self._asked = self._link.address(messages)
        return self._asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        listed = [self._read(reply) for reply in replies]
        self._link.give_up_unanswered(self.__dict__.get("_asked", ()))
        return self._aggregated(server_round, listed)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = self.inner.configure_evaluate(server_round, arrays, config, grid)
        if isinstance(grid, LinkedGrid):
            return messages
        attach(grid, self._link, self._deliver)
        return self._link.address(messages)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, [self._read(reply) for reply in replies])

    def summary(self) -> None:
        log(INFO, "\t├──> Compression: %s", self._link.method.label)
        self.inner.summary()

    def _configured(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages. What counted so far is safe before anybody is told of it."""
        number = server_round + self._offset
        if self._checkpoint is not None:
            self._checkpoint.save(number - 1, arrays)
        self._arrays = arrays
        shown = self._integers.withheld(arrays)
        messages = list(self._configure(number, shown, config, grid))
        if shown is not arrays:
            for message in messages:
                self._integers.put_into(message, shown, arrays)
        return messages

    def _aggregated(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The inner strategy's next model; the replies that it was given count if there is one."""
        link, given, sents = self._link, [], []
        self._integers.begin()
        for reply in replies:
            sent = self._delivered.pop(reply.metadata.reply_to_message_id, None)
            if sent is not None and link.channel(sent).open.get(sent.number) is not sent:
                continue
            if sent is not None:
                sents.append(sent)
            if reply.has_content() and len(reply.content.array_records) == 1:
                key, arrays = only_arrays(reply.content)
                reply.content = RecordDict({**reply.content, key: self._integers.seen(arrays)})
            given.append(reply)
        aggregated, metrics = self._aggregate(server_round + self._offset, given)
        for sent in sents:
            link.acknowledge(sent, float(aggregated is not None))
        counted = tuple(sorted(sent.node for sent in sents)) if aggregated is not None else ()
        plain = [reply for reply in given if aggregated is not None and reply.has_content()]
        others = {reply.metadata.src_node_id for reply in plain} - set(counted)
        link.report.close(max((sent.number for sent in sents), default=link.number), tuple(sorted({*counted, *others})))
        link.check_set_up()
        if aggregated is None:
            return None, metrics
        model = self._integers.whole(cast(aggregated, Base(self._arrays).template), aggregated, self._arrays)
        if self._checkpoint is not None and self._checkpoint.each_model:
            self._checkpoint.save(server_round + self._offset, model)
        return model, metrics

    def _deliver(self, arrived: Arrived) -> Message:
        """A reply as the inner strategy knows it."""
        reply, sent = arrived.reply, arrived.sent
        if sent is None or not sent.train or reply.has_error():
            return reply
        if arrived.payload is not None:
            key = only_arrays(reply.content)[0]
            reply.content = RecordDict({**reply.content, key: arrays_of(arrived)})
        if self._delivery_counts:
            self._link.acknowledge(sent, 1.0)
            self._link.report.close(sent.number, (sent.node,))
        else:
            self._delivered[reply.metadata.reply_to_message_id] = sent
            if len(self._delivered) > _MOST_DELIVERED:
                del self._delivered[next(iter(self._delivered))]
        return reply

    def _read(self, reply: Message) -> Message:
        """A reply that came by a grid that is not ours."""
        if reply.metadata.reply_to_message_id in self._delivered or reply.has_error():
            return reply
        arrived = receive(self._link, reply)
        if arrived.wanted:
            self._link.report.refuse(reply.metadata.src_node_id, self._link.number, "the node has lost its model")
        return self._deliver(arrived)

    def _resumed(self, arrays: ArrayRecord) -> ArrayRecord:
        """The arrays to start from: the checkpoint's, where there is one."""
        self._offset = 0
        if self._checkpoint is None:
            return arrays
        saved = self._checkpoint.load()
        if saved is None:
            return arrays
        self._offset, arrays = saved
        log(INFO, "fedsparq: going on after round %d of the checkpoint", self._offset)
        return arrays
