"""The server's side: any strategy of Flower's behind compressed messages, and one of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from logging import INFO
from typing import Any, Generic

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Result,
    Strategy,
)
from flwr.supercore import log

from fedsparq.compress.method import broadcast_method, check_broadcast
from fedsparq.compress.method import method as method_named
from fedsparq.compress.payload import Payload
from fedsparq.compress.pipeline import Method
from fedsparq.errors import OptionError
from fedsparq.federate.rules import Rules
from fedsparq.federate.server import Server
from fedsparq.flower.books import Books, S, Traffic
from fedsparq.flower.header import KEY
from fedsparq.flower.mod import only_arrays
from fedsparq.flower.records import cast, tensor_values, to_arrays
from fedsparq.flower.relay import Relay
from fedsparq.flower.streaming import StreamingGrid
from fedsparq.layout import Layout

_CLIPPING = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)


class _Compressing(Strategy, Generic[S]):
    """Sampling and evaluation by an inner strategy, messages by our books."""

    _timeout: float | None = None

    def __init__(self, inner: Strategy, books: Books[S]) -> None:
        self.inner = inner
        self._books = books

    @property
    def rounds(self) -> list[Traffic]:
        """What each round weighed, who counted and what happened."""
        return self._books.rounds

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        self._timeout = timeout
        return super().start(grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        log(INFO, "\t├──> Compression: %s", self._books.method.label)
        self.inner.summary()


class Compressed(_Compressing[Relay]):
    """Any strategy of Flower's, its messages small: ``strategy = Compressed(FedAvg(...))``.

    The inner strategy sees what it would see without compression: the model plus each client's update, in the model's
    own types. What it returns is brought back to those types, so a counter stays a whole number. A reply counts, and
    its client may forget it, when the inner strategy has returned a model. With `downlink`, a method too, nodes are
    sent only what changed since the model they hold.
    """

    def __init__(
        self,
        strategy: Strategy,
        method: str | Method = "fedsparq",
        *,
        downlink: str | Method | None = None,
        **options: Any,
    ) -> None:
        super().__init__(strategy, Books(Relay, _method(method, options), _broadcast(downlink)))
        self._withholds_integers = isinstance(strategy, _CLIPPING)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = self.inner.configure_train(server_round, self._for_inner(arrays), config, grid)
        self._arrays = arrays
        return self._books.address(messages, arrays, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        books = self._books
        if not books.open:
            return self.inner.aggregate_train(server_round, replies)
        counters: dict[str, np.ndarray[Any, Any]] = {}
        plain = []
        for reply, dense in books.receive(replies, self._timeout):
            if not reply.has_error():
                key, arrays = only_arrays(reply.content)
                payload = books.server.take()
                if not dense and payload is not None:
                    arrays = _added(self._arrays, payload)
                for tensor in books.layout.counters if self._withholds_integers else ():
                    value = arrays[tensor.name].numpy()
                    counters[tensor.name] = np.maximum(counters.get(tensor.name, value), value)
                kept = {name: record for name, record in reply.content.items() if name != KEY}
                reply.content = RecordDict({**kept, key: self._for_inner(arrays)})
            plain.append(reply)
        aggregated, metrics = self.inner.aggregate_train(server_round, plain)
        books.close(books.server.close(stepped=aggregated is not None))
        if aggregated is None:
            return None, metrics
        return self._whole(aggregated, counters, books.layout), metrics

    def _for_inner(self, arrays: ArrayRecord) -> ArrayRecord:
        """Clipping multiplies updates, which whole numbers cannot bear: such strategies get the floats alone."""
        if not self._withholds_integers:
            return arrays
        return ArrayRecord({name: array for name, array in arrays.items() if np.dtype(array.dtype).kind == "f"})

    def _whole(self, aggregated: ArrayRecord, counters: dict[str, np.ndarray[Any, Any]], layout: Layout) -> ArrayRecord:
        """The model in its own types; integers that were withheld are put back in their places."""
        arrays = cast(aggregated, layout)
        if not self._withholds_integers:
            return arrays
        withheld = {name: Array(np.asarray(value)) for name, value in counters.items()}
        return ArrayRecord({t.name: withheld.get(t.name) or arrays[t.name] for t in layout.tensors})


class FedSparQ(_Compressing[Server]):
    """A strategy of its own: replies are added up as they come, and the server steps with momentum.

    Memory does not grow with the number of clients. The method decides on weights and momentum, as everywhere in
    FedSparQ; `rules` on which replies count. Nodes are told the proximal term as `proximal-mu`, as by Flower's FedProx.
    """

    def __init__(
        self,
        method: str | Method = "fedsparq",
        *,
        downlink: str | Method | None = None,
        rules: Rules | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        **options: Any,
    ) -> None:
        self._sampling = FedAvg(
            fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, min_available_nodes
        )
        books = Books(Server, _method(method, options), _broadcast(downlink), rules)
        super().__init__(self._sampling, books)
        self._deadline = rules.deadline if rules else None

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        return super().start(StreamingGrid(grid, self._deadline), *args, **kwargs)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if self._books.method.proximal_mu:
            config["proximal-mu"] = self._books.method.proximal_mu
        messages = self.inner.configure_train(server_round, arrays, config, grid)
        return self._books.address(messages, arrays, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        books, measured = self._books, []
        if not books.open:
            return None, None
        for reply, _ in books.receive(replies, self._timeout):
            if not reply.has_error():
                measured.append(RecordDict(dict(reply.content.metric_records)))
                # Flower's records refer to each other in a circle: left alone, the bytes would stay until gc comes by.
                only_arrays(reply.content)[1].clear()
        outcome = books.server.close_round()
        books.close(outcome)
        if not outcome.counted:
            return None, None
        return to_arrays(books.server.state.model, books.layout), self._metrics(measured)

    def _metrics(self, measured: list[RecordDict]) -> MetricRecord | None:
        """The weighted mean of what the clients measured, where all of them say their weight."""
        key = self._sampling.weighted_by_key
        if not all(any(key in record for record in content.metric_records.values()) for content in measured):
            return None
        return self._sampling.train_metrics_aggr_fn(measured, key)


def _method(chosen: str | Method, options: dict[str, Any] | None = None) -> Method:
    if isinstance(chosen, str):
        return method_named(chosen, **(options or {}))
    if options:
        raise OptionError(f"the options {', '.join(options)} need the name of the method they are for")
    return chosen


def _broadcast(chosen: str | Method | None) -> Method | None:
    if isinstance(chosen, str):
        return broadcast_method(chosen)
    if chosen is not None:
        check_broadcast(chosen)
    return chosen


def _added(before: ArrayRecord, payload: Payload) -> ArrayRecord:
    """The model after one client's update, in its own types; statistics and counters are as the client has them."""
    update, exact, arrays = payload.dense(), payload.exact, {}
    for tensor in payload.layout.tensors:
        if tensor.role == "parameter":
            values = before[tensor.name].numpy() + update[tensor.span].reshape(tensor.shape)
            arrays[tensor.name] = Array(np.asarray(values.astype(tensor.dtype, copy=False)))
        elif exact is not None:
            arrays[tensor.name] = Array(tensor_values(tensor, update, exact))
    return ArrayRecord(arrays)
