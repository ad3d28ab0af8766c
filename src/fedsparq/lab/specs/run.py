"""What one run is, and a comparison: methods x partitions x seeds."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import reduce
from itertools import product
from typing import Annotated, Any

import numpy as np
import tomli_w
from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from fedsparq.errors import OptionError
from fedsparq.federate.downlink import Lattice
from fedsparq.federate.messages import REPLY_OVERHEAD
from fedsparq.federate.validation import check_kept_in_step
from fedsparq.lab.settings import (
    SUPERVISED,
    DataSpec,
    Integer,
    MethodSpec,
    PerExample,
    RoundSpec,
    Training,
    check,
    merge,
    slug,
)
from fedsparq.lab.specs.parts import FaultSpec, ServerSpec
from fedsparq.lab.specs.privacy import PrivacySpec
from fedsparq.lab.specs.promises import check_promises
from fedsparq.lab.tasks.task import FORMER_NAME, SPAFL
from fedsparq.method import Method
from fedsparq.methods.registry import SPELLINGS, aggregator, compresses_downlink, federated_method, method, optimizer
from fedsparq.options import parse_bytes


def chosen_clients(clients: int, a_round: int, seed: int, number: int) -> list[int]:
    """The clients that take part in a round."""
    if a_round == clients:
        return list(range(clients))
    drawn = np.random.default_rng([seed, number, 6]).choice(clients, a_round, replace=False)
    return sorted(int(client) for client in drawn)


def most_rounds(clients: int, a_round: int, seed: int, rounds: int) -> int:
    """In how many of so many rounds that client takes part which is in most of them."""
    if a_round == clients:
        return rounds
    taken = np.zeros(clients, np.int64)
    for number in range(1, rounds + 1):
        taken[chosen_clients(clients, a_round, seed, number)] += 1
    return int(taken.max())


def poisson_clients(clients: int, rate: float) -> list[int]:
    """Each client with this probability, by a coin of its own from the system's random source; maybe nobody."""
    coins = np.frombuffer(secrets.token_bytes(8 * clients), np.uint64) >> np.uint64(11)
    return [int(client) for client in np.flatnonzero(coins < rate * 2.0**53)]


_TEXTS = ("shakespeare",)
_DOWNLINKS = ("auto", "lattice", "none")

AS_TEXT = "as text"
"""The validation context of a spec that is only read: what it names is not made."""


TRAINING = tuple(field.name for field in fields(Training))
"""Settings that a spec has in its table `training`."""

PRIVACY = ("epsilon", "delta", "clip", "sampling", "example_clip", "secure_sums")
"""Settings that a spec has in its table `privacy`."""


def to_spec_table(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by name as the table of a spec: ``lr`` belongs to ``training``, ``epsilon`` to ``privacy``."""
    table = {key: value for key, value in settings.items() if key not in (*TRAINING, *PRIVACY)}
    for name, keys in (("training", TRAINING), ("privacy", PRIVACY)):
        own = {key: settings[key] for key in keys if key in settings}
        inner = table.get(name, {})
        if twice := [key for key in own if isinstance(inner, Mapping) and key in inner]:
            raise OptionError(f"{twice[0]} is given twice, at the top and in {name}")
        if own and isinstance(inner, Mapping):
            table[name] = {**inner, **own}
        elif own:
            table[name] = replace(inner, **own)
    return table


def _training(value: Any) -> Any:
    return Training(**value) if isinstance(value, dict) else value


class RunSpec(RoundSpec, MethodSpec, DataSpec):
    """One run: one method on one task and seed."""

    note: str = ""
    training: Annotated[Training, BeforeValidator(_training)] = Training()
    server: ServerSpec = ServerSpec()
    faults: FaultSpec = FaultSpec()
    privacy: PrivacySpec = PrivacySpec()

    @model_validator(mode="before")
    @classmethod
    def _usual_names(cls, data: Any) -> Any:
        """Add the usual model of a data set, where none is given; read what 0.1.0 wrote."""
        if not isinstance(data, Mapping):
            return data
        data = to_spec_table(data)
        usual = {"model": "char-lstm"} if data.get("dataset") in _TEXTS else {}
        usual |= {"task": SPAFL} if data.get("method") == SPAFL else {}
        today = {"task": SUPERVISED} if data.get("task") == FORMER_NAME else {}
        today |= {key: SPELLINGS[str(data[key])] for key in ("method",) if str(data.get(key)) in SPELLINGS}
        former = {"precision"} if data.get("precision") == "float32" else set()
        former |= set() if data.get("downlink_options") else {"downlink_options"}
        return usual | {key: value for key, value in data.items() if key not in former} | today

    @model_validator(mode="after")
    def _can_be_run(self, info: ValidationInfo) -> RunSpec:
        if info.context == AS_TEXT:
            return self
        check_promises(self, self._without_noise())
        method, down = self.chosen_method(), self.lattice
        everyone = self.clients_a_round == self.clients
        check_kept_in_step(method, self.acknowledge, bool(down), everyone)
        for rule in method.traits.rules:
            if rule.task and rule.task != self.task:
                raise OptionError(f"the method {self.method!r} trains the task {rule.task!r}, not {self.task!r}")
        if self.server.min_replies > self.clients_a_round:
            needed, asked = self.server.min_replies, self.clients_a_round
            raise OptionError(f"min_replies={needed}, but {asked} clients are asked in a round: none would ever count")
        self.client_methods(lambda client: self.rounds)
        unknown = sorted(client for client in self.client_budgets if not 0 <= client < self.clients)
        if unknown:
            raise OptionError(f"client_budgets names client {unknown[0]}; there are 0 to {self.clients - 1}")
        return self

    @property
    def clients_a_round(self) -> int:
        return max(1, round(self.fraction * self.clients))

    def chosen_clients(self, number: int) -> list[int]:
        """The clients that take part in a round; with Poisson sampling others each time that they are drawn."""
        if self.privacy.sampling == "poisson":
            return poisson_clients(self.clients, self.fraction)
        return chosen_clients(self.clients, self.clients_a_round, self.seed, number)

    def chosen_method(self) -> Method:
        """The method, with the aggregator and optimizer that the spec replaces; private, if it is to be."""
        chosen = self._without_noise()
        if not self.privacy.wanted or self.privacy.of_records:
            return chosen
        poisson, rounds = self.privacy.sampling == "poisson", self.paid_rounds(self.rounds)
        divisor = self.fraction * self.clients if poisson else float(self.clients_a_round)
        return self.privacy.private(chosen, self.clients, self.fraction, divisor, rounds)

    def _without_noise(self) -> Method:
        for part, name, options in self._server_parts():
            if options and not name:
                raise OptionError(f"{part}_options are given, but no {part} to have them")
        return self._made(self.options).with_server(
            aggregator=aggregator(self.aggregator, **self.aggregator_options) if self.aggregator else None,
            optimizer=optimizer(self.optimizer, **self.optimizer_options) if self.optimizer else None,
        )

    def _made(self, options: Mapping[str, Any]) -> Method:
        """The method by its name; what its options leave open is chosen for its own server, and for who takes part."""
        if self.aggregator or self.optimizer or self.privacy.wanted or not self.acknowledge:
            return method(self.method, **options)
        return federated_method(self.method, self.clients_a_round / self.clients, **options)

    def paid_rounds(self, rounds: int) -> int:
        """For how many of so many rounds a client pays at most: those that it is in; with Poisson sampling all."""
        if self.privacy.sampling == "poisson":
            return rounds
        return most_rounds(self.clients, self.clients_a_round, self.seed, rounds)

    @property
    def per_example(self) -> PerExample | None:
        """What each client does to its own gradients, where single records are protected."""
        if self.privacy.example_clip is None:
            return None
        return PerExample(self.privacy.example_clip, self.privacy.noise_of(self.paid_rounds(self.rounds)))

    def client_methods(self, rounds: Callable[[int], int]) -> dict[int, Method]:
        """The methods of clients with a byte budget; `rounds` tells in how many rounds a client takes part."""
        amounts = dict.fromkeys(range(self.clients), self.budget) if self.budget else {}
        budgets = amounts | self.client_budgets
        return {
            client: self._made(self.options | {"budget": f"{_share(text, rounds, client)} B"})
            for client, text in budgets.items()
        }

    @property
    def lattice(self) -> Lattice | None:
        """How broadcasts are compressed, if they are."""
        if self.downlink not in _DOWNLINKS:
            raise OptionError(f"downlink={self.downlink!r}: choose auto, lattice or none")
        wanted = self.downlink == "lattice" or (self.downlink == "auto" and self._compresses_downlink)
        return Lattice(self.first_model) if wanted else None

    @property
    def downlink_kind(self) -> str:
        """`lattice` or `none`, as it is in this run."""
        return "lattice" if self.lattice else "none"

    @property
    def _compresses_downlink(self) -> bool:
        """Whether the method compresses its broadcasts where that is possible."""
        return compresses_downlink(self.method) and not self.privacy.secure_sums

    @property
    def label(self) -> str:
        """The method with its unusual options, as tables and figures name it."""
        usual = self._compresses_downlink == (self.lattice is not None)
        return self._label("" if usual else f" / down: {self.downlink_kind}")

    def _label(self, down: str) -> str:
        kind = "record-level epsilon" if self.privacy.of_records else "epsilon"
        sampled = ", poisson" if self.privacy.sampling == "poisson" else ""
        private = f"{kind} {self.privacy.epsilon:g}{sampled}" if self.privacy.epsilon else ""
        masked = "secure sums" if self.privacy.secure_sums else ""
        special = ", ".join(
            filter(None, [self.variant, private, masked, "" if self.acknowledge else "not acknowledged"])
        )
        parts = (f", {part} {_with_options(name, options)}" for part, name, options in self._server_parts() if name)
        label = "".join([self.chosen_method().label, *parts, down])
        return f"{label} ({special})" if special else label

    @property
    def partition_label(self) -> str:
        details = {"dirichlet": f"({self.alpha:g})", "shards": f"({self.shards_per_client})"}
        return self.partition + details.get(self.partition, "")

    @property
    def task_label(self) -> str:
        """What is trained: data set, model and partition, or a user's own task."""
        supervised = f"{self.dataset}-{self.model}-{self.partition_label}"
        known = {SUPERVISED: supervised, SPAFL: f"personal-{supervised}"}
        return _with_options(known.get(self.task, self.task), self.task_options)

    @property
    def folder_name(self) -> str:
        label = self._label(" / down: lattice" if self.lattice else "")
        return slug(f"{self.task_label}-{label}-seed{self.seed}")

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    def _server_parts(self) -> tuple[tuple[str, str, dict[str, Any]], ...]:
        return (
            ("aggregator", self.aggregator, self.aggregator_options),
            ("optimizer", self.optimizer, self.optimizer_options),
        )


class MethodChoice(MethodSpec):
    """One row of a comparison: a method, its options and, where it has them, other server parts and a downlink.

    A row may also differ in what goes wrong, in what the server takes and in what is private; `variant` names it.
    """

    name: str
    faults: dict[str, Any] = Field(default_factory=dict)
    server: dict[str, Any] = Field(default_factory=dict)
    privacy: dict[str, Any] = Field(default_factory=dict)

    def changes(self) -> dict[str, Any]:
        """What the row says, as keys of a run."""
        said = self.model_dump(exclude_defaults=True, exclude={"name", "options"})
        return said | {"method": self.name, "options": self.options}


class CompareSpec(BaseModel, extra="forbid", frozen=True):
    """Methods x partitions x seeds, all else alike. A list entry may be a name or a table with options."""

    name: str = ""
    methods: tuple[MethodChoice, ...] = Field(min_length=1)
    partitions: tuple[str, ...] = Field(("iid",), min_length=1)
    seeds: tuple[Integer, ...] = Field((0,), min_length=1)
    axes: tuple[tuple[dict[str, Any], ...], ...] = ()
    """Further axes, each a list of tables with keys of a run: every combination is run for each method. A table with
    `only`, a list of names, is for these methods."""
    run: dict[str, Any] = Field(default_factory=dict)
    """All other keys: those of a single run."""

    @field_validator("methods", mode="before")
    @classmethod
    def _names_are_tables(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [{"name": item} if isinstance(item, str) else item for item in value]

    def runs(self) -> list[RunSpec]:
        """Every run of the comparison, in the order in which they are run."""
        return [
            check(
                RunSpec,
                reduce(merge, map(to_spec_table, said), merge(to_spec_table(self.run), row.changes()))
                | {"partition": partition, "seed": seed},
            )
            for partition in self.partitions
            for seed in self.seeds
            for row in self.methods
            for said in self._combinations(row.name)
        ]

    def _combinations(self, method: str) -> Iterator[list[dict[str, Any]]]:
        """Of the further axes, what is for a method."""
        for chosen in product(*self.axes):
            if all(method in table.get("only", [method]) for table in chosen):
                yield [{key: value for key, value in table.items() if key != "only"} for table in chosen]


def _with_options(name: str, options: Mapping[str, Any]) -> str:
    return " ".join([name, *(f"{key}={value}" for key, value in options.items())])


def _share(budget: str, rounds: Callable[[int], int], client: int) -> int:
    """The bytes that are left for an update in a round when the reply around it is paid for."""
    amount, whole_run, _ = budget.partition("/run")
    left = parse_bytes(amount) // (max(1, rounds(client)) if whole_run else 1) - REPLY_OVERHEAD
    if left < 1:
        raise OptionError(f"budget={budget!r} is too small: a reply takes {REPLY_OVERHEAD} bytes around its update")
    return left
