"""A strategy of our own: the whole method, from compression to the server's step."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from logging import INFO
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.supercore import log

from fedsparq.errors import OptionError, RunError
from fedsparq.federate.validation import Validation
from fedsparq.flower.arrivals import Arrived
from fedsparq.flower.checkpoint import Checkpoint
from fedsparq.flower.grid import LinkedGrid, StreamingGrid
from fedsparq.flower.link import Link
from fedsparq.flower.mod import check_unplanned, portable
from fedsparq.flower.own_server import OwnServer
from fedsparq.flower.receiving import receive
from fedsparq.flower.records import only_arrays
from fedsparq.flower.reports import RoundReport
from fedsparq.flower.rules import check_runs
from fedsparq.flower.running import Evaluate, result_of, shifted, way_down
from fedsparq.method import Method
from fedsparq.methods.registry import aggregator as aggregator_named
from fedsparq.methods.registry import federated_method
from fedsparq.methods.registry import method as method_named
from fedsparq.methods.registry import optimizer as optimizer_named
from fedsparq.protocols import Aggregator, Optimizer


class FedSparQ(Strategy):
    """A strategy of its own: replies reach the method's aggregator as they come, and its optimizer steps the model.

    Memory does not grow with the number of clients, unless the aggregator needs the whole round. `aggregator` and
    `optimizer` take the place of the method's own, by name or as objects: ``aggregator="robust"`` where some nodes may
    be hostile. `validation` decides which replies count. Replies weigh as the
    method's aggregator says: those of `fedsparq` all alike, ``aggregator=Mean("examples")`` by `num-examples`. Nodes
    are told in the config what the method's client rules say, such as the proximal term as `proximal-mu`, as by
    Flower's FedProx. `checkpoint`, `federation` and `deadline` are as for `Compressed`.
    """

    def __init__(
        self,
        method: str | Method = "fedsparq",
        *,
        downlink: str | Method | None = None,
        aggregator: str | Aggregator | None = None,
        optimizer: str | Optimizer | None = None,
        validation: Validation | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        checkpoint: str | Path | None = None,
        federation: str = "",
        deadline: float | None = None,
        runs: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self._sampling = FedAvg(
            fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, min_available_nodes
        )
        aggregator = aggregator_named(aggregator) if isinstance(aggregator, str) else aggregator
        optimizer = optimizer_named(optimizer) if isinstance(optimizer, str) else optimizer

        def make(name: str, **given: Any) -> Method:
            own_server = aggregator is None and optimizer is None and (validation is None or validation.acknowledge)
            return federated_method(name, fraction_train, **given) if own_server else method_named(name, **given)

        self._method = portable(method, options, make).with_server(aggregator, optimizer)
        check_runs(self._method, runs, "FedSparQ(...) and compress(...)")
        check_unplanned(self._method)
        self._deadline = deadline if deadline is not None or validation is None else validation.deadline
        self._link = Link(self._method, way_down(downlink), federation)
        self._checkpoint = Checkpoint(checkpoint, self._sampling, self._link) if checkpoint is not None else None
        self._server = OwnServer(self._method, validation or Validation())
        self._offset, self._timeout = 0, 3600.0
        self._grid: Grid | None = None
        self._asked: list[Message] = []

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
    ) -> Result:
        """Run the rounds. Ends with an error where no reply ever counted."""
        with self._checkpoint.locked() if self._checkpoint is not None else nullcontext():
            return self._start(grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)

    def _start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int,
        timeout: float,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: Evaluate | None,
    ) -> Result:
        arrays, self._offset, self._timeout = initial_arrays, 0, timeout
        if self._checkpoint is not None:
            saved = self._checkpoint.load()
            if saved is not None:
                self._offset, arrays = saved
        offset, before = self._offset, len(self.rounds)
        if num_rounds <= offset and offset:
            return result_of(arrays)
        evaluate = evaluate_fn and (lambda number, now: evaluate_fn(number + offset, now))
        weighs = "by num-examples" if self._method.traits.weighs_by_examples else "all alike"
        log(INFO, "fedsparq: replies weigh %s", weighs)
        linked = StreamingGrid(grid, self._link, lambda arrived: self._noted(arrived), self._deadline)
        left = num_rounds - offset
        result = super().start(linked, arrays, left, timeout, train_config, evaluate_config, evaluate)
        if left and not any(report.counted for report in self.rounds[before:]):
            raise RunError(f"the run ended without a model: {self._link.report.commonest}")
        if self._checkpoint is not None:
            self._save(num_rounds, result.arrays)
        return shifted(result, offset)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        caller = sys._getframe(1).f_locals.get("self")
        if isinstance(caller, Strategy) and caller is not self:
            name = type(caller).__name__
            raise OptionError(
                f"{name} would see what FedSparQ's nodes send, which is compressed; Compressed(...) can be inside of "
                f"it: {name}(Compressed(FedAvg(...), {self._method.name!r}))"
            )
        number = server_round + self._offset
        self._server.serve(arrays, self._checkpoint.extra if self._checkpoint is not None else {})
        if self._checkpoint is not None:
            self._save(number - 1, arrays)
        for rule in self._method.traits.rules:
            config.update(rule.config)
        messages = list(self._sampling.configure_train(number, arrays, config, grid))
        self._link.norm_limit = self._server.norm_limit
        self._server.open_round([message.metadata.dst_node_id for message in messages])
        self._grid = grid
        self._asked = [] if isinstance(grid, LinkedGrid) else self._link.address(messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        server, link, measured, sents = self._server, self._link, [], {}
        for arrived in self._arriving(replies):
            sent, reply = arrived.sent, arrived.reply
            if sent is None or reply.has_error():
                continue
            refused = server.take(arrived)
            if refused:
                link.report.refuse(sent.node, sent.number, refused)
                link.give_up(sent)
                continue
            sents[sent.node] = sent
            measured.append(RecordDict(dict(reply.content.metric_records)))
            # Flower's records refer to each other in a circle: left alone, the bytes would stay until gc comes by.
            only_arrays(reply.content)[1].clear()
        link.give_up_unanswered(self._asked)
        outcome, shares, arrays = server.close_round()
        for event in outcome.events:
            link.report.note(event.client, event.round, event.reason)
        for node, sent in sents.items():
            link.acknowledge(sent, shares.get(node, 0.0))
        link.report.close(link.number, outcome.counted)
        link.check_set_up()
        return (arrays, self._metrics(measured)) if arrays is not None else (None, None)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = self._sampling.configure_evaluate(server_round + self._offset, arrays, config, grid)
        return messages if isinstance(grid, LinkedGrid) else self._link.address(messages)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        listed = [arrived.reply for arrived in self._arriving(replies)]
        return self._sampling.aggregate_evaluate(server_round + self._offset, listed)

    def summary(self) -> None:
        log(INFO, "\t├──> Compression: %s", self._method.label)
        self._sampling.summary()

    def _noted(self, arrived: Arrived) -> Message:
        """Keep what was read of a reply until it is taken."""
        self._latest = arrived
        return arrived.reply

    def _arriving(self, replies: Iterable[Message]) -> Iterator[Arrived]:
        """Replies as our own grid has read them, or as another brought them; who lost its model is asked again."""
        lost = []
        for reply in replies:
            latest: Arrived | None = self.__dict__.pop("_latest", None)
            arrived = latest if latest is not None and latest.reply is reply else receive(self._link, reply)
            if arrived.wanted and arrived.sent is not None:
                lost.append(arrived.sent)
            else:
                yield arrived
        if lost and self._grid is not None:
            again = [self._link.again(sent) for sent in lost]
            yield from self._arriving(self._grid.send_and_receive(again, timeout=self._timeout))

    def _save(self, done: int, arrays: ArrayRecord) -> None:
        assert self._checkpoint is not None
        self._checkpoint.extra = self._server.saved()
        self._checkpoint.save(done, arrays)

    def _metrics(self, measured: list[RecordDict]) -> MetricRecord | None:
        """The weighted mean of what the clients measured, where all of them say their weight."""
        key = self._sampling.weighted_by_key
        if not all(any(key in record for record in content.metric_records.values()) for content in measured):
            return None
        return self._sampling.train_metrics_aggr_fn(measured, key)
