"""The server's side: a strategy around any of Flower's, or one of our own with the method's aggregator and
optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from logging import INFO, getLogger
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.supercore import log

from fedsparq.errors import OptionError, RunError, UpdateError, WireError
from fedsparq.federate.events import Reporter, RoundReport
from fedsparq.federate.exact import ArraySpec, NamedModel
from fedsparq.federate.lattice import FirstModel
from fedsparq.federate.ledger import Ledger, Ticket
from fedsparq.federate.model import Model
from fedsparq.federate.named_server import NamedServer
from fedsparq.federate.validation import Validation
from fedsparq.flower import advice
from fedsparq.flower.checkpoint import Checkpoint
from fedsparq.flower.grid import Arrived, LinkedGrid
from fedsparq.flower.integers import Integers, only_record
from fedsparq.flower.mod import portable, whole_method
from fedsparq.flower.records import alike, cast, examples, only_arrays, to_record
from fedsparq.layout import Arrays
from fedsparq.method import Method
from fedsparq.protocols import Aggregator, Optimizer

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]

_FRACTIONS = {
    "fraction_train": 1.0,
    "fraction_evaluate": 0.0,
    "min_train_nodes": 2,
    "min_evaluate_nodes": 2,
    "min_available_nodes": 2,
}


class FedSparQ(Strategy):
    """Any strategy of Flower's with small messages, ``FedSparQ(FedAvg(...))``; or a strategy of our own,
    ``FedSparQ()``.

    Around another strategy: it makes its own messages and sees what it would see without compression, the arrays that
    it sent to a node plus that node's update, in their own types. Its attributes are this one's, and a `start` of its
    own runs. A reply counts, and its client may forget it, when the strategy was given it and returned another model.
    The method's own aggregator, optimizer and client rules are not used.

    Without one, replies reach the method's aggregator as they come, and its optimizer steps the model. Memory does not
    grow with the number of clients, unless the aggregator needs the whole round. `aggregator` and `optimizer` take the
    place of the method's own, by name or as objects: ``aggregator="robust"`` where some nodes may be malicious.
    `validation` decides which replies count. Nodes are told in the config what the method's client rules say, such as
    the proximal term as `proximal-mu`, as by Flower's FedProx.

    With a compressed `downlink`, nodes are sent what changed since the model they hold, on a lattice: "auto" leaves it
    to the method, "lattice" asks for it, None turns it off. `first_model="one-bit"` is for freshly initialized models:
    training starts from the signs of the weights. With `checkpoint`, a folder, and `federation`, a name, a new run goes
    on where the last one ended or was killed. Methods are given by name, as ``package.module:function``, or as what
    `fedsparq.method` returned. `deadline` is how many seconds a round waits at most; by default five times the slowest
    reply so far, and a minute at least.
    """

    inner: Strategy

    def __init__(
        self,
        strategy: Strategy | str | Method | None = None,
        method: str | Method = "fedsparq",
        *,
        downlink: Literal["auto", "lattice"] | None = "auto",
        first_model: FirstModel = "8-bit",
        aggregator: str | Aggregator | None = None,
        optimizer: str | Optimizer | None = None,
        validation: Validation | None = None,
        checkpoint: str | Path | None = None,
        federation: str = "",
        deadline: float | None = None,
        runs: Sequence[str] = (),
        **options: Any,
    ) -> None:
        around = None if isinstance(strategy, str | Method) else strategy
        method = strategy if isinstance(strategy, str | Method) else method
        fractions = {name: options.pop(name) for name in _FRACTIONS if name in options}
        own = {"aggregator": aggregator, "optimizer": optimizer, "validation": validation, **fractions}
        self.__dict__["_server"] = None
        if around is None:
            self.__dict__["inner"] = FedAvg(**{**_FRACTIONS, **fractions})
            share = self.inner.fraction_train  # type: ignore[attr-defined]
            chosen = whole_method(method, options, share, aggregator, optimizer, validation)
            self._server = NamedServer(chosen, validation or Validation())
            deadline = deadline if deadline is not None or validation is None else validation.deadline
        else:
            advice.check_message_api(around)
            if any(value is not None for value in own.values()):
                names = ", ".join(name for name, value in own.items() if value is not None)
                raise OptionError(f"{names}: {type(around).__name__} decides that; leave them out, or the strategy")
            chosen = portable(method, options)
            if chosen.traits.requires_own_server:
                raise OptionError(
                    f"{chosen.label!r} has a server of its own: use FedSparQ({chosen.name!r}), without a strategy"
                )
            self.__dict__["inner"] = around
            advice.warn_of_robust(around, chosen)
        advice.check_runs(chosen, runs, "FedSparQ(...) and compress(...)")
        lattice = advice.lattice_of(chosen, downlink, first_model)
        self._ledger, self._report = Ledger(chosen, lattice, federation), Reporter(getLogger("flwr"))
        self._checkpoint = Checkpoint(checkpoint, self.inner, self._ledger) if checkpoint is not None else None
        self._method, self._deadline, self._offset = chosen, deadline, 0
        self._integers, self._arrays = Integers(self.inner), ArrayRecord()
        self._linked: LinkedGrid | None = None
        self._delivered: list[tuple[Ticket, frozenset[int]]] = []
        self._published: frozenset[int] = frozenset()

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
        return self._report.rounds

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
        """Run the rounds, by the inner strategy's own `start` where it has one. RunError where no reply ever
        counted.
        """
        if self._server is None:
            advice.say_who_decides(self.inner, self._method)
        else:
            weighs = "by num-examples" if self._method.traits.weighs_by_examples else "all alike"
            log(INFO, "fedsparq: replies weigh %s", weighs)
        with self._checkpoint.locked() if self._checkpoint is not None else nullcontext():
            self._offset, arrays = 0, initial_arrays
            saved = self._checkpoint.load() if self._checkpoint is not None else None
            if saved is None:
                arrays = self._first_model(arrays)
            else:
                self._offset, arrays = saved
                log(INFO, "fedsparq: going on after round %d of the checkpoint", self._offset)
            offset, left, before = self._offset, num_rounds - self._offset, len(self.rounds)
            if left <= 0 < offset:
                result = Result()
                result.arrays = arrays
                return result
            configs = {"train_config": train_config, "evaluate_config": evaluate_config, **more}
            if evaluate_fn is not None:
                configs["evaluate_fn"] = lambda number, now: evaluate_fn(number + offset, now)
            self._linked = LinkedGrid(grid, self._ledger, self._report, deadline=self._deadline)
            if advice.has_own_start(self.inner):
                result = self._run_own_start(self._linked, arrays, left, timeout, configs)
            else:
                result = super().start(self._linked, arrays, left, timeout, **configs)
            self._check_ended(result, left, self.rounds[before:])
            self._report.summarize(self.rounds[before:])
            if self._checkpoint is not None:
                self._checkpoint.save(num_rounds, result.arrays if len(result.arrays) else self._arrays, self._extra())
            return _renumbered(result, offset)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages. What counted so far is safe before anybody is told of it."""
        if not isinstance(grid, LinkedGrid):
            raise OptionError(
                "a strategy around FedSparQ would see compressed messages: put FedSparQ outermost, "
                "FedSparQ(Wrapper(FedAvg(...)))"
            )
        number, self._arrays = server_round + self._offset, arrays
        if self._server is not None:
            self._server.serve(NamedModel.of(arrays), self._checkpoint.extra if self._checkpoint is not None else {})
            for rule in self._method.traits.rules:
                config.update(rule.config)
        if self._checkpoint is not None:
            self._checkpoint.save(number - 1, arrays, self._extra())
        shown = self._integers.begin(arrays)
        messages = list(self.inner.configure_train(number, shown, config, grid))
        for message in messages:
            self._integers.put_into(message, shown)
        self._integers.configured(messages)
        if self._server is not None:
            self._ledger.norm_limit = self._server.server.state.norm_limit
            self._server.open_round([message.metadata.dst_node_id for message in messages])
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arriving: Iterable[Arrived] = replies  # type: ignore[assignment]
        if self._server is not None:
            arrays, metrics = self._aggregate_own(self._server, arriving)
        else:
            arrays, metrics = self._aggregate_inner(server_round + self._offset, arriving)
        if self._linked is not None:
            self._linked.check_set_up()
        if arrays is not None and self._checkpoint is not None and self._checkpoint.each_model:
            self._checkpoint.save(server_round + self._offset, arrays, self._extra())
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.inner.configure_evaluate(server_round + self._offset, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        arriving: Iterable[Arrived] = replies  # type: ignore[assignment]
        messages, number = [arrived.message for arrived in arriving], server_round + self._offset
        if self._server is None:
            return self.inner.aggregate_evaluate(number, messages)
        told, weights = dict[int, Message](), 0.0
        for message in messages:
            try:
                if message.has_content():
                    weights += examples(message.content)
                    told[message.metadata.src_node_id] = message
            except WireError as error:
                self._report.refuse(message.metadata.src_node_id, self._ledger.number, str(error))
        usual = self._alike({node: message.content for node, message in told.items()})
        failed = [message for message in messages if message.has_error()]
        return self.inner.aggregate_evaluate(number, [*failed, *(told[node] for node in usual)]) if weights else None

    def summary(self) -> None:
        log(INFO, "\t├──> Compression: %s", self._method.label)
        self.inner.summary()

    def _aggregate_inner(
        self, number: int, arriving: Iterable[Arrived]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The inner strategy's next model; the replies that it was given count if there is one."""
        given, tickets = list[Message](), list[Ticket]()
        for arrived in arriving:
            ticket, message = arrived.ticket, _plain(arrived, self._integers.clips)
            if ticket is not None and not self._ledger.is_open(ticket):
                continue
            if ticket is not None:
                tickets.append(ticket)
            if message.has_content() and len(message.content.array_records) == 1:
                key, arrays = only_arrays(message.content)
                message.content = RecordDict({**message.content, key: self._integers.seen(arrays)})
            given.append(message)
        records = [only_record(message) for message in given]
        aggregated, metrics = self.inner.aggregate_train(number, given)
        for message, record in zip(given, records, strict=True):
            self._integers.given_back(message, record)
        for ticket in tickets:
            self._ledger.settle(ticket, float(aggregated is not None))
        counted = {message.metadata.src_node_id for message in given if message.has_content()}
        last = max((ticket.number for ticket in tickets), default=self._ledger.number)
        self._report.close(last, tuple(sorted(counted)) if aggregated is not None else ())
        return (None if aggregated is None else self._integers.whole(aggregated)), metrics

    def _aggregate_own(
        self, server: NamedServer, arriving: Iterable[Arrived]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The method's own next model, of replies as they come."""
        report, tickets, measured = self._report, dict[int, Ticket](), dict[int, RecordDict]()
        for arrived in arriving:
            ticket, content = arrived.ticket, arrived.message.content if arrived.ticket else RecordDict()
            if ticket is None:
                continue
            try:
                weight = examples(content)
                if arrived.received is not None:
                    payload, beside, again = arrived.received
                    refused = server.receive(ticket.client, payload, beside, weight, again)
                else:
                    refused = server.receive_plain(ticket.client, only_arrays(content)[1], weight)
            except (WireError, UpdateError) as error:
                refused = str(error)
            if refused:
                report.refuse(ticket.client, ticket.number, refused)
                self._ledger.settle(ticket, 0.0)
                continue
            tickets[ticket.client] = ticket
            measured[ticket.client] = RecordDict(dict(content.metric_records))
        outcome, shares, arrays = server.close_round()
        for event in outcome.events:
            report.note(event.client, event.round, event.reason)
        for client, ticket in tickets.items():
            self._ledger.settle(ticket, shares.get(client, 0.0))
        metrics = self._metrics(list(self._alike(measured).values()))
        report.close(self._ledger.number, outcome.counted)
        return (None, None) if arrays is None else (to_record(arrays), metrics)

    def _alike(self, contents: dict[int, RecordDict]) -> dict[int, RecordDict]:
        usual = alike(contents)
        for node in contents.keys() - usual.keys():
            self._report.note(node, self._ledger.number, "its metrics are not those of the others: left out")
        return usual

    def _metrics(self, measured: list[RecordDict]) -> MetricRecord | None:
        """The weighted mean of what the clients measured, where they say their weight."""
        sampling: Any = self.inner
        key = sampling.weighted_by_key
        if not measured or key not in next(iter(measured[0].metric_records.values()), {}):
            return None
        metrics: MetricRecord | None = sampling.train_metrics_aggr_fn(measured, key)
        return metrics

    def _first_model(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the arrays that training starts from."""
        lattice = self._ledger.downlink
        if lattice is None or lattice.first_model != "one-bit":
            return arrays
        named = NamedModel.of(arrays)
        vector = lattice.start(named.layout, Model(named.vector)).vector
        return to_record(NamedModel(named.layout, named.spec, named.exact, built=vector).arrays())

    # strategies with a loop of their own

    def _run_own_start(
        self, linked: LinkedGrid, arrays: ArrayRecord, rounds: int, timeout: float, configs: dict[str, Any]
    ) -> Result:
        """Run the inner strategy's own `start`: what counted is inferred from the models that it sends next."""
        linked.types, linked.publish, linked.deliver = ArraySpec.of(arrays), self._infer, self._handed
        result = self.inner.start(linked, arrays, rounds, timeout, **configs)
        if isinstance(result, Result) and len(result.arrays):
            result.arrays = cast(result.arrays, linked.types)
            self._infer([NamedModel.of(result.arrays)])
        else:
            self._infer([])
        return result

    def _handed(self, arrived: Arrived) -> Message:
        """A reply for a loop of its own: it is not decided yet whether it counts."""
        if arrived.ticket is not None and arrived.ticket.train:
            self._delivered.append((arrived.ticket, self._published))
        return _plain(arrived, self._integers.clips)

    def _infer(self, models: list[NamedModel]) -> None:
        """The replies that were handed over counted if the next models are others than those before."""
        now, counted = frozenset(model.digest for model in models), dict[int, list[int]]()
        for ticket, before in self._delivered:
            changed = now != before if len(before) <= 1 else ticket.model.digest not in now
            counted.setdefault(ticket.number, [])
            if self._ledger.settle(ticket, float(changed)) and changed:
                counted[ticket.number].append(ticket.client)
        for number, clients in sorted(counted.items()):
            self._report.close(number, tuple(sorted(clients)))
        self._delivered, self._published = [], now

    # the end

    def _extra(self) -> Arrays:
        return self._server.saved() if self._server is not None else {}

    def _check_ended(self, result: Any, rounds: int, played: Sequence[RoundReport]) -> None:
        """A run without a model is no success. A loop of somebody's own may give another result than Flower's."""
        if self._server is not None:
            sound = any(report.counted for report in played)
        else:
            answered = any(report.replies for report in played)
            sound = answered and len(result.arrays) > 0 if isinstance(result, Result) else answered or not played
        if rounds > 0 and not sound:
            raise RunError(f"the run ended without a model: {self._report.commonest}")


def _plain(arrived: Arrived, wide: bool) -> Message:
    """A reply as it would have come without compression; `wide`: with floats as float64."""
    request, received = arrived.request, arrived.received
    if request is not None and received is not None:
        content = arrived.message.content
        beside = received.beside
        arrays = request.ticket.model.after(received.payload, beside.arrays, beside.ties, wide)
        arrived.message.content = RecordDict({**content, only_arrays(content)[0]: to_record(arrays)})
    return arrived.message


def _renumbered(result: Result, offset: int) -> Result:
    """Rounds of a run that went on are numbered from where it did."""
    if offset and isinstance(result, Result):
        for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, name, {number + offset: record for number, record in getattr(result, name).items()})
    return result
